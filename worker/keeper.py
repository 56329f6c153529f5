"""Maintains what the worker holds: leases while the engine makes progress, deadlines, and its own presence."""

import logging

from orcastream.broker.lease import Held
from orcastream.worker.engine_loop import EngineFailed, EngineLoop
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")


class Keeper:
    """The work that must happen every fraction of a lease, whatever else is under way."""

    def __init__(
        self, settings: WorkerSettings, engine_loop: EngineLoop, roster: Roster, metrics: WorkerMetrics
    ) -> None:
        self._lease_s = settings.lease_ms / 1000
        self._stall_timeout_s = settings.stall_timeout_s
        self._retention_ms = settings.retention_ms
        self._engine_loop = engine_loop
        self._roster = roster
        self._metrics = metrics

    @property
    def stalled(self) -> bool:
        """Whether an iteration takes longer than a lease: no lease is renewed."""
        return self._engine_loop.stalled_for_s() > self._lease_s

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals: four chances within a lease."""
        return self._lease_s / 4

    async def renew(self, session: Session) -> tuple[list[Running], list[Running]]:
        """Renew every lease; return the requests that are no longer ours and those that were cancelled.

        A lease follows the engine's progress: none is renewed while an iteration takes longer than a lease, and
        EngineFailed is raised once one has taken `stall_timeout_s`, or the engine has ended: its thread may not have
        been able to say so.
        """
        self._engine_loop.check()
        stalled_s = self._engine_loop.stalled_for_s()
        if stalled_s > self._stall_timeout_s:
            raise EngineFailed(f"no iteration was completed for {stalled_s:.0f} s")
        if stalled_s > self._lease_s:
            log.error("engine stalled, leases not renewed", extra={"seconds": round(stalled_s, 1)})
            return [], []
        held = list(self._roster)
        if not held:
            return [], []
        leases = await session.leases.renew(
            [Held(r.ref, r.id, r.request.deadline_ms + self._retention_ms) for r in held]
        )
        # A request that ends meanwhile gives its entry back itself.
        held = [r for r in held if r.ref in leases]
        lost = [r for r in held if not (r.closed or leases[r.ref].owned or r.times.terminal_logged_s is not None)]
        self._metrics.renewed(sum(lease.owned for lease in leases.values()), len(lost))
        cancelled = [r for r in held if not r.closed and leases[r.ref].cancelled]
        return lost, cancelled

    def expired(self, now_ms: int) -> list[Running]:
        """Return running requests whose deadline has passed before their whole answer was computed."""
        if now_ms < self._roster.first_deadline_ms:
            return []
        overdue = [running for running in self._roster if now_ms >= running.request.deadline_ms]
        if not overdue:
            self._roster.look_for_first_deadline()
        return [running for running in overdue if not (running.ended or running.answered)]
