"""Traces of single iterations: a sample of them, each its own root, linked to the requests in its batch."""

import random
import time
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext

from orcastream.engine import IterationRecord
from orcastream.telemetry.names import Attribute, Span, SpanEvent
from orcastream.telemetry.trace_context import tracer
from orcastream.worker.phases import at_ns, plain

ContextOf = Callable[[str], SpanContext | None]


class IterationTrace:
    """Traces a share of `ratio` (0 … 1) of all iterations, subject to the process's sampler.

    `context_of` returns the span of the request that an engine id belongs to. Called in the engine's thread.
    """

    def __init__(self, model: str, ratio: float, context_of: ContextOf) -> None:
        self._model = model
        self._ratio = ratio
        self._context_of = context_of

    def iterated(self, record: IterationRecord) -> None:
        """Trace a completed iteration, if it is sampled."""
        if self._ratio and random.random() < self._ratio:
            self._trace(record)

    def _trace(self, record: IterationRecord) -> None:
        clock_ns = time.time_ns() - time.monotonic_ns()
        contexts = [self._context_of(engine_id) for engine_id in record.request_ids]
        links = {one.span_id: one for one in contexts if one is not None and one.trace_flags.sampled}
        span = tracer().start_span(
            Span.ITERATION.value,
            Context(),
            links=[Link(context) for context in links.values()],
            start_time=at_ns(clock_ns, record.started_s),
            attributes=plain(
                {
                    Attribute.MODEL: self._model,
                    Attribute.BATCH_REQUESTS: len(record.requests),
                    Attribute.PREFILL_TOKENS: record.prefill_tokens,
                    Attribute.DECODE_TOKENS: record.decode_tokens,
                }
            ),
        )
        begin_s = record.started_s
        phases = ("select", record.select_s), ("build", record.build_s), ("forward", record.forward_s)
        for name, seconds in (*phases, ("sample", record.sample_s)):
            span.add_event(SpanEvent.PHASE.value, plain({Attribute.PHASE: name}), at_ns(clock_ns, begin_s))
            begin_s += seconds
        span.end(at_ns(clock_ns, record.started_s + record.total_s))
