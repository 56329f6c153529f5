"""What one iteration was made of, and where its time went."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import RequestState
from engine.schedule.scheduler import Span


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration: times in seconds, tokens of its flat batch, and the spans that it was planned with.

    On CUDA operators are launched and not waited for: `forward_s` is the time of the launches, and what the device
    still computes then shows in `sample_s`, where the sampled tokens are waited for.
    """

    started_s: float
    """By `time.monotonic()`."""
    select_s: float
    build_s: float
    forward_s: float
    sample_s: float
    total_s: float
    """From select to advance, what lies between the phases included."""
    prefill_tokens: int
    """Known tokens computed, those recomputed after a preemption among them."""
    decode_tokens: int
    plan: Sequence[Span]

    @property
    def request_ids(self) -> list[str]:
        """The requests of the batch."""
        return [span.request.id for span in self.plan]

    @property
    def num_tokens(self) -> int:
        """Tokens of the flat batch."""
        return self.prefill_tokens + self.decode_tokens


class Stopwatch:
    """Adds up the phases of one iteration; `compute` calls it once per forward pass, retries included."""

    __slots__ = ("_at_s", "build_s", "forward_s", "sample_s", "select_s", "started_s")

    def __init__(self) -> None:
        self.started_s = self._at_s = time.monotonic()
        self.select_s = self.build_s = self.forward_s = self.sample_s = 0.0

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        lap, self._at_s = now - self._at_s, now
        return lap

    def record(self, plan: Sequence[Span], prefill_tokens: int) -> IterationRecord:
        """The iteration that ends now."""
        total_s = time.monotonic() - self.started_s
        decode_tokens = sum([span.length for span in plan]) - prefill_tokens
        times = self.started_s, self.select_s, self.build_s, self.forward_s, self.sample_s, total_s
        return IterationRecord(*times, prefill_tokens, decode_tokens, plan)


def count_prefill(plan: Sequence[Span]) -> int:
    """Tokens of `plan` that are no decode step, before any of its requests advances."""
    return sum([span.length for span in plan if span.request.state is RequestState.INITIATION])
