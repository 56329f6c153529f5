"""Keeps the engine's compute threads on cores of their own."""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence

from orcastream.engine import IterationRecord, OrcaEngine
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.native.team import team_threads
from orcastream.worker.cores import physical_cores, usable_processors
from orcastream.worker.engine_loop import Iterated
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")

_CHECK_S = 1.0


def core_binding(settings: WorkerSettings, engine: OrcaEngine) -> list[Iterated]:
    """Return the listener that binds the engine's threads, if they are to be bound and can be."""
    computes_here = engine.operators.device == "cpu" and why_unavailable() is None and hasattr(os, "sched_setaffinity")
    return [CoreBinding(team_threads).iterated] if settings.bind_threads and computes_here else []


class CoreBinding:
    """Binds thread i of the engine's team to core i, if the team has as many threads as the process may use cores.

    If the kernel puts two of them on one core, because another program takes the other core for a moment, it leaves
    them there although that core is soon idle again. Bound threads return to their own. While one waits for its core,
    the others take over from it, so threads stay bound beside a program that computes without end, too.

    Created anywhere, then used on the engine's thread alone.
    """

    def __init__(self, team: Callable[[], Sequence[int]]) -> None:
        """`team` returns the kernel's ids of the threads that compute for the calling one."""
        self._team = team
        self._placed: Sequence[int] = ()
        """The team at the last check."""
        self._is_bound = False
        self._next_s = -math.inf

    def iterated(self, _: IterationRecord) -> None:
        """Bind the team, if it is time to check whether it is a new one."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _CHECK_S
        team = self._team()
        if team == self._placed:
            return
        self._placed = team
        try:
            self._place(team)
        except OSError as error:
            log.info("the system does not let compute threads be bound to cores", extra={"why": str(error)})
            self._next_s = math.inf

    def _place(self, team: Sequence[int]) -> None:
        """Bind each thread, or let all use every core: new threads begin with the affinity of their leader."""
        processors = usable_processors()
        cores = physical_cores(processors)
        if len(team) == len(cores) > 1:
            for thread, core in zip(team, cores, strict=True):
                os.sched_setaffinity(thread, core)
            self._is_bound = True
            log.info("compute threads are bound to cores", extra={"cores": [sorted(core) for core in cores]})
        elif self._is_bound:
            for thread in team:
                os.sched_setaffinity(thread, processors)
            self._is_bound = False
            log.info("compute threads are not bound to cores any more", extra={"threads": len(team)})
