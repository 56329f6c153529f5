"""One upload: from the body of a request into the store, piece by piece."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError
from redis.exceptions import ResponseError
from starlette.requests import Request

from orcastream.broker.errors import BrokerError
from orcastream.broker.files.file_store import PIECE_BYTES, FileBounds, FileStore
from orcastream.broker.files.stored_file import StoredFile
from orcastream.gateway.admission.body_limit import announced_in
from orcastream.gateway.batches.expiry import ExpiresAfter
from orcastream.gateway.batches.form import UploadForm
from orcastream.gateway.batches.timed_id import timed_id
from orcastream.gateway.errors import body_too_large
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint

PURPOSE: Final = "batch"
HELD_BYTES: Final = 2 * PIECE_BYTES
"""Memory that an upload needs in the gateway."""
_STEP_BYTES: Final = 4 * PIECE_BYTES
"""What an upload of unknown length reserves at a time."""
_MAX_FILENAME: Final = 512
_EXPIRY: Final = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}


class Upload:
    """Reserves the file's bytes among its tenant's files, and releases them on failure.

    A form without Content-Length (as of Node's streams) reserves them as they arrive; any other, its length at once.
    """

    def __init__(self, store: FileStore, tenant: str, settings: GatewaySettings) -> None:
        self._store = store
        self._tenant = tenant
        self._settings = settings
        self._bounds = FileBounds(settings.max_files_bytes, settings.max_files)

    async def receive(self, request: Request, now_ms: int) -> StoredFile:
        """Return the file once all of it is stored.

        Raises InvalidRequest, ApiError, FilesFull, and what FileStore raises.
        """
        form = UploadForm(request.headers.get("content-type", ""))
        most_bytes = self._settings.max_file_bytes
        announced = announced_in(request.headers.get("content-length", "").encode("latin-1"))
        file = StoredFile(
            id=timed_id("file-", now_ms),
            filename="",
            purpose=PURPOSE,
            size_bytes=min(_STEP_BYTES if announced is None else announced, most_bytes),
            created_ms=now_ms,
            expires_ms=now_ms + int(self._settings.body_timeout_s * 1000) + 1000,
            pending=True,
        )
        await self._store.keep(self._tenant, file, self._bounds)
        try:
            size_bytes = await self._pass_on(form, request.stream(), file)
            done = replace(self._checked(form, self._kept(file)), size_bytes=size_bytes)
            await self._store.keep(self._tenant, done)
            return done
        except BaseException:
            with suppress(BrokerError, ResponseError):
                await self._store.delete(self._tenant, file.id)
            raise

    async def _pass_on(self, form: UploadForm, body: AsyncIterator[bytes], file: StoredFile) -> int:
        """Store every piece of the content; return the number of bytes."""
        size_bytes, number, most_bytes = 0, 0, self._settings.max_file_bytes
        async for chunk in body:
            form.feed(chunk)
            while form.content_bytes >= PIECE_BYTES or (form.complete and form.content_bytes):
                number, piece = number + 1, form.take(PIECE_BYTES)
                size_bytes += len(piece)
                if size_bytes > most_bytes:
                    raise body_too_large(most_bytes)
                if size_bytes > file.size_bytes:
                    file = replace(file, size_bytes=min(file.size_bytes + _STEP_BYTES, most_bytes))
                    await self._store.keep(self._tenant, file, self._bounds)
                await self._store.add_piece(file, number, piece)
        if not form.complete:
            raise InvalidRequest("body", "a form without its end", "multipart/form-data")
        await self._store.check_pieces(file, number)
        return size_bytes

    def _kept(self, file: StoredFile) -> StoredFile:
        """Return the file with the default expiry."""
        return replace(file, expires_ms=file.created_ms + int(self._settings.files_retention_s * 1000), pending=False)

    def _checked(self, form: UploadForm, file: StoredFile) -> StoredFile:
        """Return the file as the form describes it."""
        fields = dict(form.fields)
        if form.filename is None:
            raise InvalidRequest("file", None, "a part with a file")
        if len(form.filename) > _MAX_FILENAME:
            raise InvalidRequest("filename", f"{len(form.filename)} characters", f"at most {_MAX_FILENAME}")
        if (purpose := fields.pop("purpose", None)) != PURPOSE:
            raise InvalidRequest("purpose", purpose, PURPOSE)
        expiry = {inner: fields.pop(name) for name, inner in _EXPIRY.items() if name in fields}
        for name, value in fields.items():
            raise InvalidRequest(name, value, "file, purpose and expires_after")
        if expiry:
            seconds = _expiry(expiry).within(self._settings.files_retention_s, "expires_after[seconds]")
            file = replace(file, expires_ms=file.created_ms + int(seconds * 1000))
        return replace(file, filename=form.filename)


def upload_schema() -> dict[str, Any]:
    """Return the JSON schema of the form."""
    seconds = ExpiresAfter.model_json_schema()["properties"]["seconds"]
    return {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary", "description": "JSON objects, one per line."},
            "purpose": {"const": PURPOSE},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": seconds,
        },
        "required": ["file", "purpose"],
        "additionalProperties": False,
    }


def _expiry(texts: dict[str, str]) -> ExpiresAfter:
    """Parse the expiry from a form, whose values are all strings."""
    try:
        return ExpiresAfter.model_validate_strings(texts)
    except ValidationError as error:
        complaint = first_complaint(error)
        raise complaint.renamed(f"expires_after[{complaint.field}]") from None
