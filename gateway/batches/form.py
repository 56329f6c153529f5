"""Parses the upload form of a file as it arrives: only its small fields are ever held whole."""

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from orcastream.schemas.errors import InvalidRequest

FILES_PATH: Final = "/v1/files"
MAX_FORM_BYTES: Final = 64 * 1024
"""Everything in a form except the file's content: boundaries, headers, and the other fields."""
_MAX_FIELDS: Final = 16
_MAX_FIELD_BYTES: Final = 1024


class UploadForm:
    """One multipart form with a part `file`, whose content is taken out piece by piece as it arrives."""

    def __init__(self, content_type: str) -> None:
        """Raises InvalidRequest naming the header if it does not announce a form."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequest("Content-Type", content_type, "multipart/form-data with its boundary")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """None until the file's part begins."""
        self.complete = False
        self._content = bytearray()
        self._name = ""
        self._value = bytearray()
        self._header = [bytearray(), bytearray()]
        self._disposition = b""
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._part_goes_on,
                    "on_part_end": self._part_ends,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidRequest("Content-Type", content_type, f"multipart/form-data ({error})") from None

    def feed(self, chunk: bytes) -> None:
        """Parse more of the body. Raises InvalidRequest naming the defect."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest("body", "another body", f"multipart/form-data ({error})") from None

    @property
    def content_bytes(self) -> int:
        """Bytes of the content that are ready to be taken."""
        return len(self._content)

    def take(self, num_bytes: int) -> bytes:
        """Take the next bytes of the content, at most `num_bytes`."""
        piece = bytes(self._content[:num_bytes])
        del self._content[:num_bytes]
        return piece

    def _part_begins(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _header_ends(self) -> None:
        name, value = map(bytes, self._header)
        if name.lower() == b"content-disposition":
            self._disposition = value
        for part in self._header:
            part.clear()

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if kind != b"form-data" or not name:
            raise InvalidRequest("body", "a part without a name", "parts of the form file=…, purpose=…")
        self._name = name.decode(errors="replace")
        if self._name in self.fields or (self._name == "file" and self.filename is not None):
            raise InvalidRequest(self._name, "several parts", "one")
        if len(self.fields) == _MAX_FIELDS:
            raise InvalidRequest("body", f"more than {_MAX_FIELDS} fields", f"at most {_MAX_FIELDS}")
        if self._name == "file":
            self.filename = options.get(b"filename", b"file").decode(errors="replace")

    def _part_goes_on(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self._content += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > _MAX_FIELD_BYTES:
            raise InvalidRequest(self._name, f"more than {_MAX_FIELD_BYTES} bytes", f"at most {_MAX_FIELD_BYTES}")

    def _part_ends(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self.complete = True
