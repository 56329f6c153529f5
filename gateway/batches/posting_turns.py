"""Turns in which the lines of a batch are posted, one after the other, and the pause after a refusal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_MOST_S: Final = 30.0
"""Longest pause, so that a service with room is not left idle for longer."""


class PostingTurns:
    """Makes lines take turns, so that a refusal pauses all of them: only one line is refused per pause."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._turn = asyncio.Lock()

    def pause(self, pause_s: float) -> None:
        """Post nothing for `pause_s` seconds."""
        self._until = max(self._until, asyncio.get_running_loop().time() + min(pause_s, _MOST_S))

    @asynccontextmanager
    async def turn(self, left_s: Callable[[], float]) -> AsyncIterator[None]:
        """Post inside: after all earlier callers, and after the pause unless `left_s()` seconds are over before."""
        async with self._turn:
            pause_s = self._until - asyncio.get_running_loop().time()
            await asyncio.sleep(min(pause_s, left_s()))
            yield
