"""Spans whose durations do not depend on changes of the system's clock."""

import time

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor


class SteadySpans(SpanProcessor):
    """Ends each span by the monotonic clock, unless a time is given: the SDK reads the wall clock at both ends, and a
    span over which that is set back would end before its start."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Replace the end of `span` until it is called."""
        clock_ns = time.time_ns() - time.monotonic_ns()

        def end(end_time: int | None = None) -> None:
            vars(span).pop("end", None)  # else the span would be in a reference cycle
            span.end(clock_ns + time.monotonic_ns() if end_time is None else end_time)

        span.end = end  # type: ignore[method-assign]  # this span's alone
