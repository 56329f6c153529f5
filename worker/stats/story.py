"""Statistics of the engine's work since the last report, combined from its records and its own timestamps."""

from collections.abc import Callable, Sequence

from orcastream.engine import IterationRecord, OrcaEngine, Request
from orcastream.schemas.stats import Batch, Blocks, Stay, WorkerStats
from orcastream.worker.policy_switch import PolicySwitch
from orcastream.worker.roster import Roster
from orcastream.worker.stats.places import Occupant, Places

ServerMs = Callable[[float], float]
"""A reading of `time.monotonic()` by the server's clock."""


class EngineStory:
    """Reports an engine's iterations on the event loop while its thread runs: numbers may be a moment apart."""

    def __init__(self, worker: str, engine: OrcaEngine, roster: Roster, policy_switch: PolicySwitch) -> None:
        self._worker = worker
        self._engine = engine
        self._roster = roster
        self._policy_switch = policy_switch
        self.begin()

    def begin(self) -> None:
        """Start for a new observer: earlier events are not reported."""
        self._places = Places()
        self._last_end_s = 0.0
        self._seated: Sequence[Request] = ()
        self._occupants: list[Occupant] = []

    def tell(self, records: Sequence[IterationRecord], now_s: float, server_ms: ServerMs) -> WorkerStats:
        """Return everything that happened up to `now_s`, of which `records` are the iterations."""
        told: dict[Occupant, int] = {}
        batches: list[Batch] = []
        iterations: list[tuple[float, float, int]] = []
        last: IterationRecord | None = None
        for record in records:
            begin_s = max(record.started_s, self._last_end_s)
            self._last_end_s = begin_s + record.total_s
            if last is None or not _same_batch(last, record):
                batches.append(self._batch(record, begin_s, told))
            last = record
            iterations.append((round((begin_s - now_s) * 1000, 2), round(record.total_s * 1000, 2), len(batches) - 1))
        blocks = self._engine.block_maps([(one.place, one.request) for one in self._places])
        gone = self._places.clear_left()
        for one in (*gone, *self._places):
            told.setdefault(one, len(told))
        if gone:
            self._seated = ()
        stats = self._engine.stats()
        return WorkerStats(
            worker=self._worker,
            policy=self._engine.config.policy,
            policies=self._policy_switch.policies,
            sent_ms=server_ms(now_s),
            num_places=self._engine.config.num_places,
            waiting=stats.waiting,
            stays=[_stay(one, server_ms) for one in told],
            batches=batches,
            iterations=iterations,
            blocks=[
                Blocks(window=one.window, num_blocks=one.num_blocks, stride=one.stride, runs=one.runs) for one in blocks
            ],
            preemptions=stats.preemptions,
            queried_tokens=stats.queried_tokens,
            cached_tokens=stats.cached_tokens,
        )

    def _batch(self, record: IterationRecord, begin_s: float, told: dict[Occupant, int]) -> Batch:
        if record.requests != self._seated:
            self._occupants, left = self._places.seat(record.requests, begin_s)
            self._seated = record.requests
            for one in (*left, *self._occupants):
                if one not in told:
                    told[one] = len(told)
                    one.continued = one.continued or self._goes_on(one.request)
        for one in self._occupants:
            told.setdefault(one, len(told))
        numbers = [told[one] for one in self._occupants]
        return Batch(stays=numbers, tokens=list(record.lengths), decodes=record.decode_tokens)

    def _goes_on(self, request: Request) -> bool:
        owner = self._roster.by_engine_id.get(request.id)
        return owner is not None and owner[0].continued


def _same_batch(last: IterationRecord, record: IterationRecord) -> bool:
    return record.requests == last.requests and record.lengths == last.lengths


def _stay(one: Occupant, server_ms: ServerMs) -> Stay:
    request, line = one.request, one.request.timeline
    submitted_s = one.joined_s if line.submitted_s is None else line.submitted_s
    left = one.left()
    request_id, _, rest = request.id.partition("#")
    choice = rest.partition("@")[0]
    return Stay(
        number=one.number,
        id=request_id.partition("@")[0],
        choice=int(choice) if choice.isdecimal() else 0,
        tenant=request.tenant,
        request_class=request.priority_class,
        place=one.place,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=request.cached_tokens,
        output_tokens=request.num_outputs,
        continued=one.continued,
        arrived_ms=server_ms(submitted_s - request.waited_s),
        joined_ms=server_ms(one.joined_s),
        first_ms=None if line.first_token_s is None else server_ms(line.first_token_s),
        left_ms=None if left is None else server_ms(left[0]),
        left=None if left is None else left[1],
    )
