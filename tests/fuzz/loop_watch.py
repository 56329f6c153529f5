"""How long one piece of work holds a worker's event loop; health checks do not show this, because another thread
answers.

Counts the CPU time of the loop's own thread between two samples, so a paused machine counts nothing.
"""

import asyncio
import mmap
import struct
import time
from pathlib import Path
from typing import Any

from orcastream.worker.worker import Worker

_INTERVAL_S = 0.003
_FORM = "d"
SIZE = mmap.PAGESIZE


def watch(path: Path) -> None:
    """Keep the longest piece of work, in seconds, in the file; called in a worker's process before it starts."""
    run = Worker.run

    async def watched(self: Worker, *rest: Any) -> Any:
        ticking = asyncio.create_task(_tick(path))
        try:
            return await run(self, *rest)
        finally:
            ticking.cancel()

    Worker.run = watched  # type: ignore[method-assign]


async def _tick(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as shared:
        while True:
            used = time.thread_time()
            await asyncio.sleep(_INTERVAL_S)
            held = time.thread_time() - used
            if held > struct.unpack_from(_FORM, shared)[0]:
                struct.pack_into(_FORM, shared, 0, held)


class LoopWatch:
    """The runner's side: `longest_held_s` since the last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(SIZE))
        self._file = path.open("r+b")
        self._shared = mmap.mmap(self._file.fileno(), SIZE)

    def longest_held_s(self) -> float:
        """Return the longest time until a moment ago."""
        held: float = struct.unpack_from(_FORM, self._shared)[0]
        struct.pack_into(_FORM, self._shared, 0, 0.0)
        return held

    def close(self) -> None:
        """Release the file."""
        self._shared.close()
        self._file.close()
