"""The measurements in each window of a long run."""

import os
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.figures.spread import Spread

MOST_SLOWER = 0.10
"""Maximum increase of p99 TBT from the first to the last window."""
MOST_GROWTH = 0.05
MOST_GROWTH_BYTES = 16 * 2**20
"""Maximum growth of a process between the second window and the last: the larger of both."""
MOST_MORE_DESCRIPTORS = 16
"""Allowance for client connections, which come and go."""


@dataclass
class Window:
    """A window, in seconds from the start of the load: figures of requests that ended and tokens that arrived in it."""

    begin_s: float
    end_s: float
    complete: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed requests, by the error that their clients got."""
    ttfts_s: "array[float]" = field(default_factory=lambda: array("d"))
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Maximum observed private memory of each process."""
    descriptors: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Number of requests without their whole answer."""
        return self.errors.total()

    def spread(self, values_s: "array[float]") -> Spread | None:
        """Return the spread of all values of a kind."""
        return Spread.of(values_s)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times in milliseconds."""
        ttft, tbt = self.spread(self.ttfts_s), self.spread(self.gaps_s)
        return {
            "begin_s": self.begin_s,
            "end_s": self.end_s,
            "complete": self.complete,
            "failed": self.failed,
            "errors": dict(self.errors),
            "ttft_ms": ttft and ttft.to_ms(),
            "tbt_ms": tbt and tbt.to_ms(),
            "memory_bytes": self.memory_bytes,
            "descriptors": self.descriptors,
        }


class Windows:
    """Windows of `length_s` from `begun_s` (monotonic) on, to which measurements are assigned."""

    def __init__(self, begun_s: float, length_s: float) -> None:
        self._begun_s = begun_s
        self._length_s = length_s
        self._windows: list[Window] = []
        self._looked_s = 0.0

    @property
    def whole(self) -> list[Window]:
        """Return the windows under load to their end, to the precision of the process samples."""
        return [one for one in self._windows if one.begin_s + self._length_s / 2 < self._looked_s]

    def take(self, outcomes: list[Outcome]) -> None:
        """Count the outcomes, and clear the list."""
        taken = outcomes[:]
        del outcomes[: len(taken)]
        for outcome in taken:
            self._count(outcome)

    def look(self, pids: Mapping[str, int]) -> None:
        """Sample the sizes of the processes."""
        now_s = time.monotonic()
        self._looked_s = now_s - self._begun_s
        window = self._at(now_s)
        for name, pid in pids.items():
            with suppress(OSError, IndexError):  # it ends just now, and has no memory any more
                status = Path(f"/proc/{pid}/status").read_text()
                memory = int(status.split("RssAnon:")[1].split()[0]) * 1024
                window.memory_bytes[name] = max(memory, window.memory_bytes.get(name, 0))
                window.descriptors[name] = max(len(os.listdir(f"/proc/{pid}/fd")), window.descriptors.get(name, 0))

    def _count(self, outcome: Outcome) -> None:
        window = self._at(outcome.ended_s or outcome.arrived_s)
        if not outcome.complete:
            window.errors[outcome.error or "the stream ended early"] += 1
            return
        window.complete += 1
        if outcome.ttft_s is not None:
            window.ttfts_s.append(outcome.ttft_s)
        for before, after in pairwise(outcome.pieces_s):
            self._at(after).gaps_s.append(after - before)

    def _at(self, moment_s: float) -> Window:
        number = max(0, int((moment_s - self._begun_s) / self._length_s))
        while len(self._windows) <= number:
            begin_s = len(self._windows) * self._length_s
            self._windows.append(Window(begin_s, begin_s + self._length_s))
        return self._windows[number]


def shortcomings(windows: Sequence[Window]) -> list[str]:
    """Return problems as sentences; memory warms up in the first window."""
    if len(windows) < 2:
        return ["there are not two whole windows"]
    errors = sum((one.errors for one in windows), Counter[str]())
    found = [f"requests failed, {times} times: {error}" for error, times in errors.most_common()]
    first, settled, last = windows[0], windows[min(1, len(windows) - 2)], windows[-1]
    before, after = first.spread(first.gaps_s), last.spread(last.gaps_s)
    if before is None or after is None:
        found.append("no tokens came")
    elif after.p99 > before.p99 * (1 + MOST_SLOWER):
        found.append(f"p99 TBT rose from {before.p99 * 1000:.1f} to {after.p99 * 1000:.1f} ms")
    for name, memory in last.memory_bytes.items():
        least = settled.memory_bytes.get(name, memory)
        if memory > least + max(MOST_GROWTH_BYTES, MOST_GROWTH * least):
            found.append(f"{name} grew from {least / 2**20:.0f} to {memory / 2**20:.0f} MiB")
    for name, number in last.descriptors.items():
        if number > settled.descriptors.get(name, number) + MOST_MORE_DESCRIPTORS:
            found.append(f"{name} went from {settled.descriptors[name]} to {number} descriptors")
    return found
