"""Requests that may have caused the deaths of their previous workers: each runs alone until it makes progress."""

import asyncio
from collections import deque

from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.running import Running


class Isolation:
    """Runs one suspect at a time, `current`; the others wait for their turn. Used on the event loop."""

    def __init__(self, engine_loop: EngineLoop) -> None:
        self._engine_loop = engine_loop
        self._waiting: deque[Running] = deque()
        self._changed = asyncio.Event()
        self.current: Running | None = None

    def __contains__(self, running: Running) -> bool:
        """Whether `running` waits for its turn."""
        return running in self._waiting

    def add(self, running: Running) -> None:
        """Add a claimed suspect."""
        self._waiting.append(running)
        self._changed.set()

    def remove(self, running: Running) -> bool:
        """Remove a suspect that must end before its turn; False if it is not waiting for one."""
        if running not in self._waiting:
            return False
        self._waiting.remove(running)
        return True

    async def next(self) -> Running:
        """Return the suspect whose turn it is, once the previous one is done."""
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
        """Resume all others once new output of the current suspect is logged, which takes its attempts back, or it is
        gone: if another one then ends the worker, nothing counts against this one. If its epoch has ended, output or an
        end that waits for the next one is enough, because that may take long.
        """
        current = self.current
        if current is None:
            return
        waits = (current.brought or current.ended) and current.log is None
        if not (current.closed or current.progressed or waits):
            return
        current.suspect, self.current = False, None
        self._engine_loop.release()
        self._changed.set()
