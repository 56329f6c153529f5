"""The record of one iteration: what it computed, and where its time went."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orcastream.engine.request import Request


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration: times in seconds, and the tokens of its flat batch.

    On an asynchronous device `forward_s` is the time of the launches alone; the rest of the computation shows in
    `sample_s`, which waits for the sampled tokens.
    """

    started_s: float
    """Time of `time.monotonic()`."""
    select_s: float
    build_s: float
    forward_s: float
    sample_s: float
    total_s: float
    """From select, or from the end of the previous iteration if that is later, until its tokens are accounted for."""
    prefill_tokens: int
    """Known tokens computed, including those recomputed after a preemption."""
    decode_tokens: int
    context_tokens: int
    """Tokens that the attention of the iteration reads: the sum of the contexts of all spans."""
    requests: "Sequence[Request]"
    """The requests of the batch, decoding ones first. They may have advanced since."""
    lengths: Sequence[int]
    """Tokens of each request's span."""
    prefill_attention: int = 0
    """Query-key pairs of prefills, counted as if each query saw its span's whole context."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the flat batch."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def request_ids(self) -> list[str]:
        """The ids of the batch's requests."""
        return [request.id for request in self.requests]


class Stopwatch:
    """Adds up the phases of one iteration, retries included."""

    __slots__ = ("_at_s", "build_s", "forward_s", "sample_s", "select_s", "started_s")

    def __init__(self) -> None:
        self.started_s = self._at_s = time.monotonic()
        self.select_s = self.build_s = self.forward_s = self.sample_s = 0.0

    def lap(self) -> float:
        """Return the seconds since the last lap, and start the next."""
        now = time.monotonic()
        lap, self._at_s = now - self._at_s, now
        return lap
