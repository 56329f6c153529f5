"""Turns in which the lines of a batch are posted, one after the other, and the pause after a refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_MOST_S: Final = 30.0
"""A service that has room again is not left idle for longer."""


class PostingTurns:
    """However many lines wait, the service refuses one of them in a pause: the next one's turn is behind the pause."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._turn = asyncio.Lock()

    def pause(self, pause_s: float) -> None:
        """Nothing is to be posted for so long."""
        self._until = max(self._until, asyncio.get_running_loop().time() + min(pause_s, _MOST_S))

    @asynccontextmanager
    async def turn(self, most_s: float) -> AsyncIterator[None]:
        """Post inside: after all who asked before, and after the pause, but no longer than `most_s` after those."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            give_up_at = loop.time() + most_s
            await asyncio.sleep(min(self._until, give_up_at) - loop.time())
            yield
