"""Memory and file descriptors of the processes, from /proc."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one process. `at` is in seconds of `time.monotonic()`."""

    name: str
    pid: int
    at: float
    memory_bytes: int
    descriptors: int


def look(name: str, pid: int) -> Sample | None:
    """Sample a process now; None means it is gone."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        if "RssAnon:" in status:
            memory_bytes = int(status.split("RssAnon:")[1].split()[0]) * 1024
            return Sample(name, pid, time.monotonic(), memory_bytes, len(os.listdir(f"/proc/{pid}/fd")))
    return None


class Resources:
    """Samples all processes every second; `pids` returns them by name."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self.samples: list[Sample] = []
        self.longest_standstill_s = 0.0
        """How long this very process, and perhaps the whole machine, did nothing: what follows proves little."""

    def look(self) -> None:
        """Take a sample of each process."""
        looks = (look(name, pid) for name, pid in self._pids().items())
        self.samples.extend(one for one in looks if one is not None)

    async def watch(self) -> None:
        """Take samples forever."""
        while True:
            self.look()
            begin = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)
            self.longest_standstill_s = max(self.longest_standstill_s, time.monotonic() - begin - _INTERVAL_S)
