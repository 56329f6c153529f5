"""What one iteration was made of, and where its time went."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orcastream.engine.request import Request


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration: times in seconds, and the tokens of its flat batch.

    On a device that runs by itself operators are launched and not waited for: `forward_s` is the time of the launches,
    and what the device still computes then shows in `sample_s`, where the sampled tokens are waited for.
    """

    started_s: float
    """By `time.monotonic()`."""
    select_s: float
    build_s: float
    forward_s: float
    sample_s: float
    total_s: float
    """From select, or from the end of the iteration before where that is later, until its tokens are accounted for."""
    prefill_tokens: int
    """Known tokens computed, those recomputed after a preemption among them."""
    decode_tokens: int
    context_tokens: int
    """Tokens that the attention of the iteration looks at: the contexts of all spans, added up."""
    requests: "Sequence[Request]"
    """The requests of the batch, those that decode first. They have gone on since."""
    lengths: Sequence[int]
    """Tokens of each one's span."""
    prefill_attention: int = 0
    """Pairs of a prefill's query and a key that it sees, counted as if each saw its span's whole context."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the flat batch."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def request_ids(self) -> list[str]:
        """The requests of the batch, by their ids."""
        return [request.id for request in self.requests]


class Stopwatch:
    """Adds up the phases of one iteration, retries included."""

    __slots__ = ("_at_s", "build_s", "forward_s", "sample_s", "select_s", "started_s")

    def __init__(self) -> None:
        self.started_s = self._at_s = time.monotonic()
        self.select_s = self.build_s = self.forward_s = self.sample_s = 0.0

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        lap, self._at_s = now - self._at_s, now
        return lap
