"""Keeps the engine's compute threads on cores of their own."""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence

from orcastream.engine import IterationRecord, OrcaEngine
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.native.team import team_threads
from orcastream.telemetry.processors import usable_processors
from orcastream.worker.cores import physical_cores
from orcastream.worker.engine_loop import Iterated
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")

_CHECK_S = 1.0
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0


def core_binding(settings: WorkerSettings, engine: OrcaEngine) -> list[Iterated]:
    """Return the listener that binds the engine's threads, if they are to be bound and can be."""
    computes_here = engine.operators.device == "cpu" and why_unavailable() is None and hasattr(os, "sched_setaffinity")
    return [CoreBinding(team_threads).iterated] if settings.bind_threads and computes_here else []


class CoreBinding:
    """Binds thread i of the engine's team to core i, if the team has as many threads as the process may use cores.

    If the kernel puts two of them on one core, because another program takes the other core for a moment, it leaves
    them there although that core is soon idle again. Bound threads return to their own. While one waits for its core,
    the others take over from it, so threads stay bound beside a program that computes without end, too. They are
    released, and bound again after half a minute or more, if the team or the cores are not the same any more.

    Created anywhere, then used on the engine's thread alone.
    """

    def __init__(self, team: Callable[[], Sequence[int]]) -> None:
        """`team` returns the kernel's ids of the threads that compute for the calling one."""
        self._team = team
        self._bound: tuple[Sequence[int], set[int]] | None = None
        """The threads that are bound, and the processors that the process could use then."""
        self._next_s = self._bound_s = -math.inf
        self._pause_s = _FIRST_PAUSE_S

    def iterated(self, _: IterationRecord) -> None:
        """Bind or release, if it is time for that."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _CHECK_S
        team, processors = self._team(), usable_processors()
        try:
            if self._bound is None:
                self._bind(team, processors, now)
            elif self._bound != (team, processors):
                self._release(team, processors, now)
        except OSError as error:
            log.info("the system does not let compute threads be bound to cores", extra={"why": str(error)})
            self._next_s = math.inf

    def _bind(self, team: Sequence[int], processors: set[int], now: float) -> None:
        cores = physical_cores(processors)
        if len(team) != len(cores) or len(cores) < 2:
            self._next_s = now + _FIRST_PAUSE_S  # the system may give the process other cores
            return
        for thread, core in zip(team, cores, strict=True):
            os.sched_setaffinity(thread, core)
        self._bound, self._bound_s = (team, processors), now
        log.info("compute threads are bound to cores", extra={"cores": [sorted(core) for core in cores]})

    def _release(self, team: Sequence[int], processors: set[int], now: float) -> None:
        """Let all threads use every core: new ones begin with the affinity of their leader."""
        for thread in team:
            os.sched_setaffinity(thread, processors)
        self._bound = None
        if now - self._bound_s > _LONGEST_PAUSE_S:
            self._pause_s = _FIRST_PAUSE_S
        self._next_s = now + self._pause_s
        log.info("compute threads or their cores have changed: they are released", extra={"pause_s": self._pause_s})
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
