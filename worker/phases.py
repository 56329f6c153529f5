"""The phases of one epoch as children of its span: created afterwards, from timestamps that exist anyway."""

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from orcastream.engine import Timeline
from orcastream.telemetry.names import Attribute, Span, SpanEvent
from orcastream.telemetry.trace_context import tracer
from orcastream.worker.times import Times

Value = str | int | list[str]
Timed = tuple[float, SpanEvent, Mapping[Attribute, Value]]


class Phases:
    """Creates children of `parent`, an epoch that began at `begin_s`; `timelines` are those of its choices.

    The engine's work before the epoch belongs to an earlier one and is omitted: the engine continues undisturbed
    during a reconnect. So is work after the end: the engine learns of a cancel an iteration later. Its thread may still
    be adding to the timelines.
    """

    def __init__(self, parent: trace.Span, clock_ns: int, begin_s: float, timelines: Sequence[Timeline]) -> None:
        """`clock_ns`: the Unix time at which `time.monotonic()` is 0."""
        self._parent = set_span_in_context(parent, Context())
        self._clock_ns = clock_ns
        self._begin_s = begin_s
        self._timelines = timelines
        self._preempted = [at_s for line in timelines for at_s in tuple(line.preempted_s) if at_s > begin_s]

    @property
    def preemptions(self) -> int:
        """How often the request was put back into the pool in this epoch, all choices together."""
        return len(self._preempted)

    def queue(self, times: Times) -> None:
        """Add the phase from the entry's arrival to its claim."""
        self._child(Span.QUEUE, times.claimed_s - times.queue_s, times.claimed_s)

    def compute(self, end_s: float) -> None:
        """Add `wait`, to the first chunk; `prefill`, from there to the first token; `decode`, from there to `end_s`."""
        admitted_s, token_s = first_chunk_and_token(self._timelines, end_s)
        if self._begin_s < (admitted_s or end_s):
            self._child(Span.WAIT, self._begin_s, admitted_s or end_s)
        if admitted_s is None:
            return
        first_s = end_s if token_s is None else token_s
        events = sorted((event for event in self._events() if event[0] <= end_s), key=lambda event: event[0])
        if first_s > self._begin_s:
            before = [event for event in events if event[0] <= first_s]
            self._child(Span.PREFILL, max(admitted_s, self._begin_s), first_s, before)
        if token_s is not None:
            after = [event for event in events if event[0] > first_s]
            if first_s > self._begin_s:
                after.insert(0, (first_s, SpanEvent.FIRST_TOKEN, {}))
            self._child(Span.DECODE, max(first_s, self._begin_s), end_s, after)

    def publish(self, times: Times) -> None:
        """Add the phase from creating the terminal event to its write."""
        if times.terminal_made_s is not None and times.terminal_logged_s is not None:
            self._child(Span.PUBLISH, times.terminal_made_s, times.terminal_logged_s)

    def _events(self) -> Iterable[Timed]:
        for line in self._timelines:
            for at_s, tokens in tuple(line.chunks):
                if at_s > self._begin_s:
                    yield at_s, SpanEvent.CHUNK, {Attribute.CHUNK_TOKENS: tokens}
        for at_s in self._preempted:
            yield at_s, SpanEvent.PREEMPTED, {}

    def _child(self, name: Span, begin_s: float, end_s: float, events: Iterable[Timed] = ()) -> None:
        span = tracer().start_span(name.value, self._parent, start_time=at_ns(self._clock_ns, begin_s))
        for at_s, event, values in events:
            span.add_event(event.value, plain(values), at_ns(self._clock_ns, at_s))
        span.end(at_ns(self._clock_ns, max(begin_s, end_s)))


def first_chunk_and_token(timelines: Iterable[Timeline], until_s: float) -> tuple[float | None, float | None]:
    """Return when the engine began a request and when it had its first token, each if by `until_s`."""
    lines = list(timelines)
    return (
        _earliest((line.scheduled_s for line in lines), until_s),
        _earliest((line.first_token_s for line in lines), until_s),
    )


def _earliest(stamps_s: Iterable[float | None], until_s: float) -> float | None:
    """Return the first timestamp; None if all are missing or after `until_s`."""
    return min((at_s for at_s in stamps_s if at_s is not None and at_s <= until_s), default=None)


def at_ns(clock_ns: int, at_s: float) -> int:
    """Return a `time.monotonic()` as Unix time in nanoseconds; `clock_ns` is the Unix time of its 0."""
    return clock_ns + int(at_s * 1e9)


def plain(values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Return attributes with plain strings, as exporters require."""
    return {name.value: str(value) if isinstance(value, str) else value for name, value in values.items()}
