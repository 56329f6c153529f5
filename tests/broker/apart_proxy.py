"""A TCP proxy between a reader and Redis, which separates a read from the second one sent with it."""

import asyncio

from orcastream.broker.log_pages import xread
from orcastream.broker.resp import ReplyParser, pack_parts
from orcastream.broker.second_read import _ENTRIES
from tests.tcp_proxy import TcpProxy

_BLOCK, _SECOND = pack_parts("BLOCK"), xread(_ENTRIES)


class ApartProxy(TcpProxy):
    """Forwards byte by byte (`_PIECE_BYTES` must be 1), and holds back the rest of a second read when told to."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._is_armed = self._cutting = False
        self._held: int | None = None
        self._sent: dict[int, bytes] = {}
        self._replies = ReplyParser()
        self._free, self._sent_both = asyncio.Event(), asyncio.Event()
        self.held, self.answered = asyncio.Event(), asyncio.Event()
        """The server has the read alone; and it has answered it."""

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def hold_second(self, *, cut: bool = False) -> None:
        """Hold back the second read after the one in flight; with `cut`, its connection breaks once the read before it
        is answered.
        """
        await self._sent_both.wait()
        self._is_armed, self._cutting, self._replies = True, cut, ReplyParser()
        for event in (self.held, self.answered, self._free):
            event.clear()

    def let_go(self) -> None:
        """Let what is held back arrive."""
        self._held = None
        self._free.set()

    async def hold(self, connection: int, *, reply: bool) -> None:
        if not reply and connection == self._held:
            await self._free.wait()

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        if not reply:
            sent = self._sent[connection] = (self._sent.get(connection, b"") + data)[-len(_SECOND) :]
            if sent.endswith(_BLOCK):
                self._sent_both.clear()
            elif sent == _SECOND:
                self._sent_both.set()
            if self._is_armed and sent == _SECOND:
                self._is_armed, self._held = False, connection
                self.held.set()
        elif connection == self._held and self._replies.feed(data):
            self.answered.set()
            return data, self._cutting
        return data, False
