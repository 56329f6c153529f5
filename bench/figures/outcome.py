"""One request as seen by its client."""

from dataclasses import dataclass, field
from itertools import pairwise

from orcastream.bench.figures.spread import percentile
from orcastream.bench.workloads.sample import SampleRequest


@dataclass(frozen=True)
class Objectives:
    """Service-level objectives of one request, in seconds; None: no limit."""

    ttft_s: float | None = None
    tbt_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tbt_s is not None


@dataclass
class Outcome:
    """The answer so far. Times are seconds of a monotonic clock; `arrived_s` is when the request was due.

    The wait for a free client counts, as it would for a person: a late start is not excused.
    """

    request: SampleRequest
    arrived_s: float
    pieces_s: list[float] = field(default_factory=list)
    """Arrival times of the pieces: a piece is one token, or the few that the gateway delivered together."""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    tokens: int = 0
    """Output tokens."""
    has_usage: bool = False
    """Whether the gateway reported these counts."""
    output_ids: list[int] = field(default_factory=list)
    """Token ids, if known: HTTP returns text."""
    finish_reason: str | None = None
    workers: list[str] = field(default_factory=list)
    """The workers that served it, in order: several after a handover or a takeover."""
    ended_s: float | None = None
    """When the stream was complete; None if it was not."""
    refused_after_s: float | None = None
    """Time from sending to refusal; None if the request was accepted or got no answer."""
    error: str | None = None
    """Kind of failure in a few words, the same words for the same kind."""

    @property
    def complete(self) -> bool:
        """Whether the whole answer arrived."""
        return self.error is None and self.ended_s is not None

    @property
    def exact(self) -> bool | None:
        """Whether the answer matches the known one exactly; None if none is known or it was cut on purpose."""
        if self.request.answer is None or self.request.max_tokens is not None:
            return None
        return self.complete and self.finish_reason == "stop" and self.text.strip() == self.request.answer

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return self.pieces_s[0] - self.arrived_s if self.pieces_s else None

    @property
    def e2e_s(self) -> float | None:
        """From arrival to the end of the stream."""
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive pieces."""
        return [after - before for before, after in pairwise(self.pieces_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.tokens < 2 or len(self.pieces_s) < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.tokens - 1)

    @property
    def normalized_latency_s(self) -> float | None:
        """E2E per output token: the measure of Orca's evaluation (OSDI'22, section 6)."""
        return None if self.e2e_s is None or not self.tokens else self.e2e_s / self.tokens

    def meets(self, objectives: Objectives) -> bool:
        """Return whether the answer is complete and its TTFT and 99th percentile of gaps are within the objectives."""
        ttft_s, gaps_s = self.ttft_s, sorted(self.gaps_s)
        if not self.complete or ttft_s is None:
            return False
        slow_start = objectives.ttft_s is not None and ttft_s > objectives.ttft_s
        stalls = objectives.tbt_s is not None and bool(gaps_s) and percentile(gaps_s, 0.99) > objectives.tbt_s
        return not slow_start and not stalls

    def tokens_until(self, moment_s: float) -> float:
        """Return the output tokens that had arrived by then, assuming pieces of equal size."""
        if not self.pieces_s:
            return 0.0
        return self.tokens * sum(piece <= moment_s for piece in self.pieces_s) / len(self.pieces_s)
