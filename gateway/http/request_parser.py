"""The parser of a connection's requests."""

from collections.abc import Callable

import httptools


class RequestParser:
    """httptools' parser, for which requests that offer an upgrade, as Java's HttpClient does for HTTP/2, do not.

    httptools takes the rest of the connection, even such a request's body, for the other protocol, and parses nothing
    more if the connection is not kept alive. So the request's head is parsed again without the offer, by a new parser.
    """

    def __init__(self, connection: object, head_without_upgrade: Callable[[], bytes]) -> None:
        """`connection` has the callbacks of httptools; `head_without_upgrade` returns the head that was just read."""
        self._connection = connection
        self._head_without_upgrade = head_without_upgrade
        self._parser = self._new()

    def _new(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._connection)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return parser

    @property
    def offers_upgrade(self) -> bool:
        """Whether the headers that were just read offer another protocol; CONNECT requires one."""
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes of the connection."""
        left = memoryview(data)
        while True:
            try:
                self._parser.feed_data(left)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self.offers_upgrade:
                    raise
                head = self._head_without_upgrade()
                self._parser = self._new()
                self._parser.feed_data(head)
                left = left[upgrade.args[0] :]

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
