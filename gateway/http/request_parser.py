"""The parser of a connection's requests."""

from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orcastream.gateway.errors import ApiError
from orcastream.gateway.http.arrival import MAX_HEADER_BYTES, Arrival
from orcastream.gateway.http.last_answer import headers_too_large, unknown_expectation

_EXPECTATIONS: Final = (b"", b"100-continue")


class RequestParser:
    """httptools' parser with a bound for headers, and without trailers, upgrades, and unknown expectations.

    Trailers, which follow a body in chunks, are ignored: a proxy that checks headers has not checked them.

    httptools takes the rest of the connection behind an offer of an upgrade, as Java's HttpClient makes for HTTP/2,
    even such a request's body, for the other protocol, and parses nothing more if the connection is not kept alive. So
    the request's head is parsed again without the offer, by a new parser.
    """

    def __init__(self, connection: HttpToolsProtocol, arrival: Arrival) -> None:
        """`connection` has the callbacks of httptools, and the URL and the headers that were just read."""
        self._connection = connection
        self._arrival = arrival
        self.refusal: ApiError | None = None
        """Why a request is refused that is valid HTTP as far as it was read."""
        self.on_url = connection.on_url
        self._parser = self._new()

    def _new(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return parser

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes of the connection. Raises HttpParserError if they are invalid, or refused."""
        self._arrival.begin_piece()
        left = memoryview(data)
        while True:
            try:
                self._parser.feed_data(left)
                break
            except httptools.HttpParserUpgrade as upgrade:
                if not self._offers_upgrade:
                    raise
                head = self._head_without_upgrade()
                self._parser = self._new()
                self._parser.feed_data(head)
                left = left[upgrade.args[0] :]
        if self._arrival.exceeds_headers(len(data), self._header_bytes):
            self.refusal = headers_too_large()
            raise httptools.HttpParserError

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        self._arrival.begin()
        self._connection.on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has arrived; httptools leaves the white space after its value, which is no part of it."""
        if not self._arrival.in_body:
            self._connection.on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """The headers are complete."""
        if self._offers_upgrade:
            return
        if self._header_bytes() > MAX_HEADER_BYTES:
            self.refusal = headers_too_large()
        elif any(name == b"expect" and value.lower() not in _EXPECTATIONS for name, value in self._connection.headers):
            self.refusal = unknown_expectation()
        if self.refusal is not None:
            raise ValueError("refused")  # of which httptools makes an HttpParserError
        self._arrival.begin_body()
        self._connection.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some bytes of a body have arrived."""
        self._arrival.add_body()
        self._connection.on_body(body)

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        if self._offers_upgrade:
            return
        self._arrival.end()
        self._connection.on_message_complete()

    def get_http_version(self) -> str:
        """Return the version of the request that was just read."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """Return its method."""
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        """Whether the connection continues after it."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Whether the connection changes to another protocol after it."""
        return self._parser.should_upgrade()

    @property
    def _offers_upgrade(self) -> bool:
        """Whether the headers that were just read offer another protocol; CONNECT requires one."""
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        """Return the head of the request whose headers were just read, without its offer of another protocol."""
        url, headers = self._connection.url, self._connection.headers
        lines = [b"%b %b HTTP/%b" % (self.get_method(), url, self.get_http_version().encode())]
        lines += [b"%b: %b" % (name, value) for name, value in headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def _header_bytes(self) -> int:
        """Return the size of the URL and of the headers that are complete, with their colons and line ends."""
        return len(self._connection.url) + sum(len(name) + len(value) + 4 for name, value in self._connection.headers)
