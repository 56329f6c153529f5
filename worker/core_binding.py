"""Keeps the engine's compute threads on cores of their own while nobody else needs these."""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orcastream.engine import IterationRecord, OrcaEngine
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.native.team import team_threads
from orcastream.worker.cores import physical_cores, usable_processors
from orcastream.worker.engine_loop import Iterated
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")

_CHECK_S = 1.0
_MOST_WAITING = 0.1
"""Share of its time that a bound thread may wait for its core."""
_LEAST_RUN_NS = 200_000_000
"""A thread that was ready for less than that since the last check says nothing."""
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0
_TASKS = Path("/proc/self/task")


def core_binding(settings: WorkerSettings, engine: OrcaEngine) -> list[Iterated]:
    """Return the listener that binds the engine's threads, if they are to be bound and can be."""
    computes_here = engine.operators.device == "cpu" and why_unavailable() is None and hasattr(os, "sched_setaffinity")
    return [CoreBinding(team_threads).iterated] if settings.bind_threads and computes_here else []


class CoreBinding:
    """Binds thread i of the engine's team to core i, if the team has as many threads as the process may use cores.

    If the kernel puts two of them on one core, because an event loop or Redis takes the other for a moment, it leaves
    them there although that core is soon idle again. Bound threads return to their own. But they cannot avoid another
    program that computes on one of the cores. So once one waits for its core for more than a tenth of the time, all are
    released, for half a minute at first, then for twice as long each time, up to an hour.

    Created anywhere, then used on the engine's thread alone.
    """

    def __init__(self, team: Callable[[], Sequence[int]]) -> None:
        """`team` returns the kernel's ids of the threads that compute for the calling one."""
        self._team = team
        self._times: dict[int, _Times] = {}
        """Of each bound thread, at the last check."""
        self._next_s = self._bound_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def iterated(self, _: IterationRecord) -> None:
        """Bind or release, if it is time for that."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _CHECK_S
        try:
            if not self._times:
                self._bind(now)
            elif self._waits():
                self._release(now)
        except OSError as error:
            log.info("the system does not let compute threads be bound to cores", extra={"why": str(error)})
            self._next_s = math.inf

    def _bind(self, now: float) -> None:
        threads, cores = self._team(), physical_cores(usable_processors())
        if len(threads) != len(cores) or len(cores) < 2:
            self._next_s = now + _FIRST_PAUSE_S  # the system may give the process other cores
            return
        self._times = {thread: _Times.of(thread) for thread in threads}
        for thread, core in zip(threads, cores, strict=True):
            os.sched_setaffinity(thread, core)
        self._bound_s = now
        log.info("compute threads are bound to cores", extra={"cores": [sorted(core) for core in cores]})

    def _waits(self) -> bool:
        """Whether a bound thread waits too long for its core, or has been replaced by one that is not bound."""
        if [*self._times] != [*self._team()]:
            return True
        before, self._times = self._times, {thread: _Times.of(thread) for thread in self._times}
        shares = [self._times[thread].share_waited(before[thread]) for thread in before]
        return max(shares) > _MOST_WAITING

    def _release(self, now: float) -> None:
        processors = usable_processors()
        for thread in self._team():
            os.sched_setaffinity(thread, processors)
        self._times = {}
        if now - self._bound_s > _LONGEST_PAUSE_S:
            self._pause_s = _FIRST_PAUSE_S
        self._next_s = now + self._pause_s
        log.info("compute threads share their cores with others and are released", extra={"pause_s": self._pause_s})
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Times:
    """How long a thread has run, and how long it was ready to run and had no core, in nanoseconds."""

    ran: int
    waited: int

    @classmethod
    def of(cls, thread: int) -> "_Times":
        """Raises OSError if the system does not tell, or if the thread has ended."""
        ran, waited, _ = (_TASKS / str(thread) / "schedstat").read_text().split()
        return cls(int(ran), int(waited))

    def share_waited(self, before: "_Times") -> float:
        ran, waited = self.ran - before.ran, self.waited - before.waited
        return waited / (ran + waited) if ran + waited >= _LEAST_RUN_NS else 0.0
