"""A TCP proxy between the services and Redis: it refuses connections, cuts them in the middle of a command, and delays
what is sent over them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.tcp_proxy import TcpProxy

_BEFORE_REPLIES_S = 0.2
"""A reply that nobody takes any more ends its connection: delayed commands arrive before."""


class Proxy(TcpProxy):
    """A proxy that accepts no connections before `listen`."""

    def __init__(self, target_port: int, port: int) -> None:
        super().__init__(target_port, port)
        self._num_to_cut = {"commands": 0, "replies": 0}
        self._held: set[int] = set()
        self._released = {"commands": asyncio.Event(), "replies": asyncio.Event()}

    def cut(self, which: str, count: int) -> None:
        """Let half of each of the next `count` `commands` or `replies` pieces through, then cut the connection."""
        self._num_to_cut[which] = count

    @asynccontextmanager
    async def delay(self, share: int) -> AsyncIterator[None]:
        """Hold back what is sent over every `share`-th of the present connections meanwhile; it arrives afterwards,
        even if its sender has closed the connection.
        """
        for event in self._released.values():
            event.clear()
        self._held = {number for number in range(self._num_connections) if number % share == 0}
        try:
            yield
        finally:
            self._held = set()
            self._released["commands"].set()
            await asyncio.sleep(_BEFORE_REPLIES_S)
            self._released["replies"].set()

    async def hold(self, connection: int, *, reply: bool) -> None:
        """Wait while the connection is delayed."""
        if connection in self._held:
            await self._released["replies" if reply else "commands"].wait()

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """Forward a piece: all of it, or half if it is to be cut."""
        which = "replies" if reply else "commands"
        if self._num_to_cut[which] == 0:
            return data, False
        self._num_to_cut[which] -= 1
        return data[: len(data) // 2], True
