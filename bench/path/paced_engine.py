"""An engine that computes nothing: each running request gets one token per iteration, at a steady pace."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

from orcastream.engine import EngineStats, IterationRecord, OrcaEngine, Request, TokenEvent
from orcastream.engine.operators import Operators
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.stopping import FinishReason

_VOCABULARY = 150_000


@dataclass(frozen=True)
class _Config:
    num_places: int
    token_budget_tokens: int = 1024
    policy: str = "fcfs"


class PacedEngine:
    """The part of an engine that a worker uses. An iteration takes `interval_s` and almost no CPU time."""

    def __init__(self, num_places: int, interval_s: float) -> None:
        self.config = _Config(num_places)
        self.limits = ModelLimits(_VOCABULARY, 1_000_000)
        self.eos_token_ids: frozenset[int] = frozenset()
        self.last_iteration: IterationRecord | None = None
        self.num_events = 0
        self.iterations = 0
        self._interval_s = interval_s
        self._running: dict[str, list[int]] = {}
        self._next_s = 0.0
        self._before_forward: Callable[[], object] = list

    def as_engine(self) -> OrcaEngine:
        """Return itself with the type of an engine."""
        return cast(OrcaEngine, self)

    prompt_events = ()
    """Prompts are not reported."""

    in_flight = False
    """No iteration is computed ahead."""

    @property
    def operators(self) -> Operators:
        """Operators that do not compute."""
        return Operators("cpu", "float32", "none", "none: it computes nothing")

    @property
    def has_work(self) -> bool:
        """Whether a step would produce anything."""
        return bool(self._running)

    @property
    def num_waiting(self) -> int:
        """No request waits here."""
        return 0

    def call_before_forward(self, callback: Callable[[], object]) -> None:
        """Register a callback, which is called when the sleep begins."""
        self._before_forward = callback

    def isolate(self, request_ids: Collection[str]) -> None:
        """Do nothing: there is no computation to isolate."""

    def submit(self, request: Request) -> None:
        """Accept a request."""
        self._running[request.id] = [0, request.max_tokens or 1]

    def cancel(self, request_id: str) -> bool:
        """End a request without an event."""
        return self._running.pop(request_id, None) is not None

    def step(self) -> list[TokenEvent]:
        """Sleep until the next iteration is due; return one token per request."""
        now_s = time.monotonic()
        self._before_forward()
        self._next_s = max(self._next_s + self._interval_s, now_s)
        time.sleep(self._next_s - now_s)
        events = []
        for request_id, progress in list(self._running.items()):
            position, most = progress
            progress[0] += 1
            last = FinishReason.LENGTH if position + 1 == most else None
            events.append(TokenEvent(request_id, position, (position * 7919) % _VOCABULARY, last))
            if last is not None:
                del self._running[request_id]
        self.num_events += len(events)
        self.iterations += 1
        return events

    def stats(self) -> EngineStats:
        """Return only the number of requests."""
        return EngineStats(0, 1, 0, 0, 0, len(self._running), 0, 0, 0, self.iterations, 0, 0, 0, self.num_events, 0)
