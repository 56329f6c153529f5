"""Runs a workload on an engine: submits requests as they arrive, iterates, and records the times of the output."""

import heapq
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.offline.iteration_log import IterationLog
from orcastream.bench.workloads import SampleRequest, continued, token_ids
from orcastream.engine import OrcaEngine, Request, TokenEvent
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams

if TYPE_CHECKING:  # `bench gpu` needs no package for constraints
    from orcastream.text.matcher import Matcher


class Drive:
    """One run. The outcomes are in the order of the workload; a request's arrival is when it was due.

    `objectives` accompany every request, for policies that use them; each output follows `matcher`, which must never
    let an output end.
    """

    def __init__(
        self,
        engine: OrcaEngine,
        requests: Sequence[SampleRequest],
        objectives: Objectives,
        matcher: "Matcher | None" = None,
    ) -> None:
        self._engine = engine
        self._matcher = matcher
        self._requests = requests
        self._objectives = objectives
        self._due: list[tuple[float, int]] = []
        self._followers: dict[int, list[int]] = {}
        self._running: dict[str, int] = {}
        self.outcomes = [Outcome(request, 0.0) for request in requests]
        self.log = IterationLog(engine)
        self.begun_s = self.until_s = time.monotonic()
        self.ended = 0

    def run(self, tell: Callable[[int], None] = lambda _: None) -> None:
        """Run until every request has ended; `tell` gets their number after each iteration. Raises InvalidRequest."""
        self.begun_s = time.monotonic()
        for index, request in enumerate(self._requests):
            if request.follows is None:
                self._due.append((self.begun_s + request.arrival_s, index))
            else:
                self._followers.setdefault(request.follows, []).append(index)
        heapq.heapify(self._due)
        while self._due or self._engine.has_work:
            self._submit()
            if not self._engine.has_work:
                time.sleep(max(0.0, self._due[0][0] - time.monotonic()))
                continue
            events = self._engine.step()
            self._take(events, time.monotonic())
            self.log.note()
            tell(self.ended)
        self.until_s = max((outcome.ended_s or self.begun_s for outcome in self.outcomes), default=self.begun_s)

    def _submit(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due_s, index = heapq.heappop(self._due)
            outcome = self.outcomes[index]
            outcome.arrived_s = due_s
            request = self._request(f"bench-{index}", outcome.request)
            outcome.prompt_tokens = len(request.prompt_ids)
            self._running[request.id] = index
            try:
                self._engine.submit(request)
            except InvalidRequest as error:
                raise InvalidRequest(
                    error.field, error.value, f"{error.allowed} (request {index} of the workload)"
                ) from None

    def _request(self, request_id: str, sample: SampleRequest) -> Request:
        ttft_s, tbt_s = self._objectives.ttft_s, self._objectives.tbt_s
        return Request(
            request_id,
            token_ids(sample),
            SamplingParams(temperature=0.0, ignore_eos=self._matcher is None, max_tokens=sample.max_tokens),
            priority_class=sample.priority_class,
            tenant=sample.tenant,
            ttft_slo_ms=None if ttft_s is None else ttft_s * 1000,
            tbt_slo_ms=None if tbt_s is None else tbt_s * 1000,
            matcher=None if self._matcher is None else self._matcher.another(),
        )

    def _take(self, events: Sequence[TokenEvent], now: float) -> None:
        for event in events:
            index = self._running[event.request_id]
            outcome = self.outcomes[index]
            if event.token is not None:
                outcome.pieces_s.append(now)
                outcome.output_ids.append(event.token)
                outcome.tokens += 1
            if event.error is not None:
                outcome.error = event.error
            if event.error is not None or event.finish_reason is not None:
                outcome.finish_reason = event.finish_reason
                outcome.cached_tokens = event.cached_tokens
                self._end(index, now)

    def _end(self, index: int, now: float) -> None:
        outcome = self.outcomes[index]
        outcome.ended_s = now
        self.ended += 1
        for follower in self._followers.pop(index, ()):
            own = self.outcomes[follower]
            if own.request.continues:
                own.request = continued(own.request, token_ids(outcome.request), outcome.output_ids)
            heapq.heappush(self._due, (now + own.request.arrival_s, follower))
