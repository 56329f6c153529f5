"""One connection to a gateway that reads streamed answers at almost no cost.

The client must not slow down the server: a reader that takes a quarter of a millisecond per event takes its share of
the cores from the engine, and adds to every time to first token. asyncio passes the bytes directly to httptools'
parser.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

from httptools import HttpParserError, HttpResponseParser


class HttpConnection(asyncio.Protocol):
    """A connection for one request after another over HTTP/1.1.

    `status`, `pieces` and `read` raise ConnectionError if the answer breaks off.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: deque[bytes] = deque()
        self._has_head = self._ended = False
        self._broken: str | None = None
        self.is_free = False
        """Whether the connection can carry another request."""

    def ask(self, message: bytes) -> None:
        """Send a whole request; the previous answer must have been read."""
        assert self._transport is not None
        self._parser = HttpResponseParser(self)
        self._pieces.clear()
        self._has_head = self._ended = self.is_free = False
        self._transport.write(message)

    async def status(self) -> int:
        """Wait for the status code and return it."""
        while not self._has_head:
            await self._more()
        return int(self._parser.get_status_code())

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._ended:
                return
            await self._more()

    async def lines(self) -> AsyncIterator[str]:
        """Yield the lines of the body, without their ends."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").removesuffix("\r")
        if rest:
            yield rest.decode(errors="replace")

    async def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """Close the connection in any state."""
        self.is_free = False
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        """Wait for new data."""
        if self._broken is not None:
            raise ConnectionResetError(self._broken)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._broken = f"invalid HTTP: {error}"
            self.close()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """From asyncio."""
        self.is_free = False
        self._broken = self._broken or (str(error) if error else "the connection was closed")
        self._wake()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._ended = True
        self.is_free = self._parser.should_keep_alive()
