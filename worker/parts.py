"""The worker's long-lived parts, which outlive its connections."""

import os
import socket
import time
from dataclasses import dataclass

from orcastream.engine import OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.telemetry.names import Outcome
from orcastream.worker.adapter_shelf import AdapterShelf
from orcastream.worker.adapter_waits import AdapterWaits
from orcastream.worker.admission import Admission
from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.isolation import Isolation
from orcastream.worker.keeper import Keeper
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.meter import ThroughputMeter
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.outbox import Outbox
from orcastream.worker.policy_switch import PolicySwitch
from orcastream.worker.publisher import Publisher
from orcastream.worker.restoring import Restorer
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running
from orcastream.worker.stats.teller import StatsTeller


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a session's tasks work with."""

    keys: Keys
    name: str
    engine: OrcaEngine
    engine_loop: EngineLoop
    isolation: Isolation
    roster: Roster
    shelf: AdapterShelf
    adapter_waits: AdapterWaits
    admission: Admission
    publisher: Publisher
    outbox: Outbox
    keeper: Keeper
    restorer: Restorer
    lifecycle: Lifecycle
    metrics: WorkerMetrics
    meter: ThroughputMeter
    policy_switch: PolicySwitch
    stats: StatsTeller
    max_claims: int
    presence_ttl_ms: int
    retention_ms: int

    @property
    def max_waiting(self) -> int:
        """Requests that may be claimed beyond the slots in the batch."""
        return self.roster.capacity - self.engine.config.num_places

    def room(self, num_claimed: int = 0) -> int:
        """Return how many requests to claim now, after `num_claimed` since the last iteration ended: as many as there
        are free slots, at most `max_claims` for one iteration; once requests wait in the engine, for memory or for a
        slot, only as many as keep that number at `max_waiting`.

        Requests that only wait for their turn among an iteration's tokens, which comes soon, may be `max_claims`: the
        next ones must be here by then. A request's number of candidates is known only after the claim; candidates
        beyond the free slots wait in the engine, too.
        """
        num_waiting = self.engine.num_waiting if len(self.roster) else 0
        most_waiting = self.max_waiting
        if num_waiting < self.max_claims and (not num_waiting or self.engine.begins_soon):
            most_waiting = max(most_waiting, self.max_claims)
        num_waiting += min(num_claimed, self.engine_loop.num_submitted)
        return max(0, min(self.roster.free, self.max_claims - num_claimed, most_waiting - num_waiting))

    def withdraw(self, engine_ids: list[str]) -> None:
        """Stop the engine's work under these ids and ignore events it may still deliver."""
        self.roster.withdraw(engine_ids)
        if engine_ids:
            self.engine_loop.cancel(engine_ids)

    def let_go(self, running: Running, outcome: Outcome) -> None:
        """Let go of a request that another worker, or a newer claim of this one, now has."""
        self.lifecycle.epoch_over(running, outcome)
        self.forget(running)

    def forget(self, running: Running) -> None:
        """Remove a request with nothing left to do."""
        self.withdraw(running.engine_ids())
        self.roster.remove(running)
        self.adapter_waits.abandon(running)
        self.isolation.look()

    def submit(self, running: Running) -> None:
        """Submit it to the engine, alone if its turn to run alone has come."""
        self.roster.submitted(running)
        self.engine_loop.submit(running.engine_requests(), alone=running is self.isolation.current)

    def not_computed(self) -> list[Running]:
        """Return the requests that are not in the current iteration."""
        alone = self.engine_loop.alone
        if alone:
            return [running for running in self.roster if not any(each in alone for each in running.engine_ids())]
        return [
            running for running in self.roster if all(timeline.scheduled_s is None for timeline in running.timelines)
        ]

    def describe(self, *, draining: bool) -> dict[str, str | int]:
        """Return the worker's report for its presence hash."""
        stats = self.engine.stats()
        return {
            "worker": self.name,
            "model": self.keys.model,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": "draining" if draining else "stalled" if self.keeper.stalled else "serving",
            "running": len(self.roster),
            "capacity": self.roster.capacity,
            "queue_lanes": self.keys.queue_lanes,
            "adapters": ",".join(self.shelf.names),
            "policy": self.engine.config.policy,
            "policies": " ".join(self.policy_switch.policies),
            "vocab_size": self.engine.limits.vocab_size,
            "max_model_len": self.engine.limits.max_model_len,
            "max_cached_tokens": self.engine.limits.max_cached_tokens or self.engine.limits.max_model_len,
            "iterations": self.engine_loop.iterations,
            "blocks_used": stats.blocks_used,
            "blocks_total": stats.blocks_total,
            "preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "output_tokens": stats.output_tokens,
            "clock_s": f"{time.monotonic():.3f}",
        }
