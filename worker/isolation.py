"""Requests that may have ended the worker that had them: each runs alone until it brings something new."""

import asyncio
from collections import deque

from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.running import Running


class Isolation:
    """One suspect at a time is `current`; the others wait for their turn. Used on the event loop."""

    def __init__(self, engine_loop: EngineLoop) -> None:
        self._engine_loop = engine_loop
        self._waiting: deque[Running] = deque()
        self._changed = asyncio.Event()
        self.current: Running | None = None

    def __contains__(self, running: Running) -> bool:
        """Whether `running` waits for its turn."""
        return running in self._waiting

    def add(self, running: Running) -> None:
        """A suspect was claimed."""
        self._waiting.append(running)
        self._changed.set()

    def remove(self, running: Running) -> bool:
        """A suspect is to be ended before its turn; False where it does not wait for one."""
        if running not in self._waiting:
            return False
        self._waiting.remove(running)
        return True

    async def next(self) -> Running:
        """The suspect whose turn it is now, once the one before it is through."""
        while True:
            self.look()
            while self.current is None and self._waiting:
                running = self._waiting.popleft()
                if not running.closed:
                    self.current = running
                    return running
            self._changed.clear()
            await self._changed.wait()

    def look(self) -> None:
        """Let all others go on, too, once the current suspect has brought something new, has ended, or is gone."""
        current = self.current
        if current is None or not (current.closed or current.ended or current.brought):
            return
        current.suspect, self.current = False, None
        self._engine_loop.release()
        self._changed.set()
