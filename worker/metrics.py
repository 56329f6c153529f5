"""The counters and histograms of a worker."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from orcastream.broker.cleanup import BURIED
from orcastream.engine import EngineStats, IterationRecord, Timeline
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry import names
from orcastream.telemetry.end_metrics import EndMetrics
from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.instruments import attributes as plain
from orcastream.telemetry.instruments import counter, observe
from orcastream.telemetry.names import Attribute, Metric
from orcastream.telemetry.redis_metrics import RedisMetrics
from orcastream.worker.phases import first_chunk_and_token
from orcastream.worker.times import Times

_REFUSED: Final = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})

ReadNumber = Callable[[], float]


class WorkerMetrics:
    """The instruments of one worker, which serves one model; they do nothing if metrics are off.

    The engine's thread calls `iterated`, the event loop everything else; exporters read the observed values.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._labels = plain({Attribute.MODEL: model})
        kind = {Attribute.OPERATION: names.OPERATION, Attribute.PROVIDER: names.PROVIDER}
        of_class = {name: {Attribute.MODEL: model, Attribute.REQUEST_CLASS: name} for name in CLASSES}
        self._of_class = {name: plain(labels) for name, labels in of_class.items()}
        self._gen_ai = {name: plain({**kind, **labels}) for name, labels in of_class.items()}
        self._iteration = histogram(names.ITERATION_DURATION).at(self._labels)
        self._batch = histogram(names.ITERATION_TOKENS).at(self._labels)
        self._first_token = {name: histogram(names.TIME_TO_FIRST_TOKEN).at(self._gen_ai[name]) for name in CLASSES}
        self._per_token = {name: histogram(names.TIME_PER_OUTPUT_TOKEN).at(self._gen_ai[name]) for name in CLASSES}
        self._queue_wait = {name: histogram(names.QUEUE_WAIT).at(self._of_class[name]) for name in CLASSES}
        self._wait = histogram(names.WAIT_DURATION).at(self._labels)
        self._prefill = histogram(names.PREFILL_DURATION).at(self._labels)
        self._decode = histogram(names.DECODE_DURATION).at(self._labels)
        self._ends = EndMetrics(model, CLASSES, (*FinishReason, *ErrorCode))
        self._renewals = counter(names.LEASE_RENEWALS)
        self._renewed, self._lost = (
            plain({Attribute.MODEL: model, Attribute.OUTCOME: outcome}) for outcome in ("renewed", "lost")
        )
        self._takeovers = counter(names.TAKEOVERS)
        self._fenced = counter(names.FENCING_REFUSALS)
        self._dead = counter(names.DEAD_LETTERS)
        self._refusals = counter(names.REFUSALS)
        for rare in (self._takeovers, self._fenced, self._dead):
            rare.add(0, self._labels)  # a counter that starts with its first event shows no increase
        self.renewed(0, 0)
        for code in _REFUSED:
            self._refusals.add(0, plain({Attribute.MODEL: model, Attribute.ERROR_TYPE: str(code)}))
        self._phase_s = dict.fromkeys(("select", "build", "forward", "sample"), 0.0)
        self._batched = {"prefill": 0, "decode": 0}
        self.redis = RedisMetrics()

    def watch_engine(self, stats: Callable[[], EngineStats], *, token_budget: int, publish_s: ReadNumber) -> None:
        """Observe the engine; `publish_s` is the time spent writing reply logs so far."""
        self._observe_each(
            names.TOKENS,
            Attribute.TOKEN_TYPE,
            {"input": lambda: stats().prompt_tokens, "output": lambda: stats().output_tokens},
        )
        self._observe_each(
            names.POOL_REQUESTS,
            Attribute.STATE,
            {"running": lambda: stats().running, "waiting": lambda: stats().waiting},
        )
        self._observe_each(
            names.KV_BLOCKS,
            Attribute.STATE,
            {"used": lambda: stats().blocks_used, "free": lambda: stats().blocks_total - stats().blocks_used},
        )
        phases: dict[str, ReadNumber] = {name: partial(self._phase_s.__getitem__, name) for name in self._phase_s}
        self._observe_each(names.PHASE_TIME, Attribute.PHASE, {**phases, "publish": publish_s})
        batched: dict[str, ReadNumber] = {name: partial(self._batched.__getitem__, name) for name in self._batched}
        self._observe_each(names.BATCHED_TOKENS, Attribute.PHASE, batched)
        self._observe(names.PREFIX_QUERIES, lambda: stats().queried_tokens)
        self._observe(names.PREFIX_HITS, lambda: stats().cached_tokens)
        self._observe(names.SWAPS, lambda: stats().swaps)
        self._observe(names.PREEMPTIONS, lambda: stats().preemptions)
        self._observe(names.TOKEN_BUDGET, lambda: token_budget)

    def watch_worker(self, *, claimed: ReadNumber, capacity: ReadNumber, unpublished: ReadNumber) -> None:
        """Observe the worker's claimed requests, capacity and unpublished tokens."""
        self._observe(names.CLAIMED, claimed)
        self._observe(names.CAPACITY, capacity)
        self._observe(names.UNPUBLISHED, unpublished)

    def watch_adapters(
        self, *, loaded: ReadNumber, loads: ReadNumber, evictions: ReadNumber, waiting: ReadNumber
    ) -> None:
        """Observe the LoRA adapters, and the requests that wait for one."""
        self._observe(names.ADAPTERS, loaded)
        self._observe(names.ADAPTER_LOADS, loads)
        self._observe(names.ADAPTER_EVICTIONS, evictions)
        self._observe(names.ADAPTER_WAITS, waiting)

    def iterated(self, record: IterationRecord) -> None:
        """Record a completed iteration."""
        self._iteration.record(record.total_s)
        self._batch.record(record.num_tokens)
        phases, batched = self._phase_s, self._batched
        phases["select"] += record.select_s
        phases["build"] += record.build_s
        phases["forward"] += record.forward_s
        phases["sample"] += record.sample_s
        batched["prefill"] += record.prefill_tokens
        batched["decode"] += record.decode_tokens

    def begun(self, priority_class: str, queue_s: float) -> None:
        """Record that the first epoch of a request was opened, `queue_s` after its arrival."""
        self._queue_wait[priority_class].record(queue_s)

    def taken_over(self) -> None:
        """Count a request continued from another worker's log."""
        self._takeovers.add(1, self._labels)

    def fenced(self) -> None:
        """Count a write refused because the log has a newer epoch."""
        self._fenced.add(1, self._labels)

    def renewed(self, owned: int, lost: int) -> None:
        """Count leases that were renewed, or found lost."""
        self._renewals.add(owned, self._renewed)
        self._renewals.add(lost, self._lost)

    def ended(self, priority_class: str | None, terminal: Terminal, duration_s: float | None) -> None:
        """Record a terminal event of this worker; class and time since arrival if known."""
        error = None if terminal.error is None else str(terminal.error)
        self._ends.ended(priority_class, terminal.outcome, error, duration_s)
        if terminal.error in BURIED:
            self.buried()
        if terminal.error in _REFUSED:
            self.refused(terminal.error)

    def first_token(self, priority_class: str, waited_s: float) -> None:
        """Record that the first token of a request was written, `waited_s` after its arrival."""
        self._first_token[priority_class].record(waited_s)

    def served(
        self,
        priority_class: str,
        terminal: Terminal,
        times: Times,
        timelines: Iterable[Timeline],
        *,
        continued: bool,
    ) -> None:
        """Record how the time of an ended request was spent; if `continued`, this worker did not see its start."""
        ended_s = times.terminal_logged_s
        if ended_s is None:
            return
        chunk_s, token_s = first_chunk_and_token(timelines, ended_s)
        if chunk_s is not None:
            self._wait.record(max(0.0, chunk_s - times.claimed_s))
            if token_s is not None:
                self._prefill.record(token_s - chunk_s)
                self._decode.record(ended_s - token_s)
        if terminal.error is None and token_s is not None and times.terminal_made_s is not None and not continued:
            longest = max(ending.tokens for ending in terminal.endings)
            if longest > 1:  # computed times: what is published only at the end is logged all at once
                self._per_token[priority_class].record((times.terminal_made_s - token_s) / (longest - 1))

    def buried(self) -> None:
        """Count an entry that was set aside."""
        self._dead.add(1, self._labels)

    def refused(self, code: ErrorCode) -> None:
        """Count an entry that breaks the contract."""
        self._refusals.add(1, plain({Attribute.MODEL: self._model, Attribute.ERROR_TYPE: str(code)}))

    def _observe(self, metric: Metric, read: ReadNumber) -> None:
        observe(metric, lambda: [(read(), self._labels)])

    def _observe_each(self, metric: Metric, attribute: Attribute, reads: dict[str, ReadNumber]) -> None:
        labelled = [(read, plain({Attribute.MODEL: self._model, attribute: value})) for value, read in reads.items()]
        observe(metric, lambda: [(read(), labels) for read, labels in labelled])
