"""Reports to traces and metrics what happens to the requests that a worker claims."""

import logging
import time
from collections.abc import Mapping
from typing import Final

from orcastream.broker.attach import Attached, Duplicate, Ended, NotMine
from orcastream.broker.claimed import Claimed
from orcastream.broker.entry import EntryRef
from orcastream.schemas.errors import InvalidRequest, without_values
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import Keys
from orcastream.telemetry.logs import trace_fields
from orcastream.telemetry.names import Outcome
from orcastream.worker.epoch_span import EpochSpan, trace_refused
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.running import Running

log = logging.getLogger("orcastream.worker")

_OUTCOMES: Final[Mapping[type, Outcome]] = {
    NotMine: Outcome.NOT_MINE,
    Duplicate: Outcome.DUPLICATE,
    Ended: Outcome.ALREADY_ENDED,
}


class Lifecycle:
    """One per worker, used on its event loop. Every span that `attaching` begins is ended by another method."""

    def __init__(self, keys: Keys, worker: str, metrics: WorkerMetrics) -> None:
        self._keys = keys
        self._template = keys.requests_template
        self._worker = worker
        self._metrics = metrics

    def attaching(self, running: Running) -> None:
        """Begin the span of an epoch about to be opened, for its started event."""
        claimed_s = running.times.begin_epoch()
        running.span = EpochSpan(
            self._template, self._worker, self._keys.model, running.ref, running.request, claimed_s
        )

    def attached(self, running: Running, outcome: Attached) -> None:
        """Record an opened epoch."""
        before = outcome.fold.previous_started
        if before is None:
            self._metrics.begun(running.ref.priority_class, running.times.queue_s)
        elif before.worker != self._worker:
            self._metrics.taken_over()
            log.info("request taken over", extra=running.log_fields(before=before.worker))
        log.debug("epoch opened", extra=running.log_fields(epoch=outcome.log.epoch))
        if running.span is not None:
            running.span.attached(
                outcome.log.epoch, outcome.fold, deliveries=running.claimed.deliveries, max_tokens=running.max_tokens
            )

    def not_attached(self, running: Running, outcome: NotMine | Duplicate | Ended) -> None:
        """Record that there is nothing to run; a terminal from an unanswered write of this worker counts as its own."""
        if isinstance(outcome, Ended) and outcome.fold.terminal is not None:
            last = outcome.fold.last_id
            unknown = running.times.terminal_logged_s is None
            if unknown and last is not None and running.last_epoch == last.epoch:
                self._count_end(running, outcome.fold.terminal)
        self.epoch_over(running, _OUTCOMES[type(outcome)])

    def first_token(self, running: Running) -> None:
        """Record that this worker wrote the first token of the request."""
        if running.times.first_logged_s is not None:
            waited_s = running.times.since_arrival_s(running.times.first_logged_s)
            self._metrics.first_token(running.ref.priority_class, waited_s)

    def ended(self, running: Running, terminal: Terminal) -> None:
        """Record that this worker wrote the terminal event."""
        log.debug("request ended", extra=running.log_fields(outcome=terminal.outcome))
        self._count_end(running, terminal)
        self._metrics.served(
            running.ref.priority_class, terminal, running.times, running.timelines, continued=running.continued
        )
        if running.span is not None:
            running.span.end(terminal, running.times, running.timelines)
            running.span = None

    def epoch_over(self, running: Running, outcome: Outcome) -> None:
        """Record that the epoch is over, or could not be opened; does nothing if it has already ended."""
        running.close_stream()
        if running.span is not None:
            log.debug("epoch over", extra=running.log_fields(outcome=str(outcome)))
            running.span.abandon(outcome, running.times, running.timelines, output_tokens=running.num_logged)
            running.span = None
        running.times.terminal_made_s = None

    def fenced(self, running: Running) -> None:
        """Record a refused write: the log has a newer epoch."""
        self._metrics.fenced()
        self.epoch_over(running, Outcome.FENCED)

    def ended_unowned(self, ref: EntryRef | None, terminal: Terminal, now_ms: int) -> None:
        """Record that this worker ended a request that nobody ran (`orcastream.broker.ending.OnEnd`)."""
        if ref is None:
            self._metrics.ended(None, terminal, None)
        else:
            self._metrics.ended(ref.priority_class, terminal, max(0, now_ms - ref.order[0]) / 1000)

    def refused(self, claimed: Claimed, error: InvalidRequest, *, answered: bool) -> None:
        """Record an entry that breaks the contract; `answered`: a terminal event was written, and already counted."""
        if not answered:
            self._metrics.refused(error.code)
        context = trace_refused(self._template, self._worker, self._keys.model, claimed, error)
        fields = {"request": claimed.request_id, "entry": str(claimed.ref), "why": without_values(str(error))}
        log.warning("request refused", extra={**fields, **trace_fields(context)})

    def set_aside(self) -> None:
        """Record an entry that became a dead letter without a terminal event (`broker.ending.OnSetAside`)."""
        self._metrics.buried()

    def _count_end(self, running: Running, terminal: Terminal) -> None:
        at_s = running.times.terminal_logged_s or time.monotonic()
        self._metrics.ended(running.ref.priority_class, terminal, running.times.since_arrival_s(at_s))
