"""One request as its client saw it."""

from dataclasses import dataclass, field
from itertools import pairwise

from bench.workload import Question


@dataclass
class Outcome:
    """What came back so far. Times are seconds of a monotonic clock; `arrived_s` is when the request was due.

    Waiting for a place among the clients counts, as it would for a person: a late start is not forgiven.
    """

    question: Question
    arrived_s: float
    pieces_s: list[float] = field(default_factory=list)
    """When each piece of text came: one token, or the few that the gateway had together."""
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    workers: list[str] = field(default_factory=list)
    """Who served it, in turn: several after a hand-over or a takeover."""
    ended_s: float | None = None
    """When the stream was complete; None unless it was."""
    error: str | None = None
    """Kind of failure in a few words: the same words for the same kind."""

    @property
    def complete(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None and self.ended_s is not None

    @property
    def exact(self) -> bool | None:
        """Whether the answer is the known one to the letter; None where none is known or it was cut on purpose."""
        if self.question.answer is None or self.question.max_tokens is not None:
            return None
        return self.complete and self.finish_reason == "stop" and self.text.strip() == self.question.answer

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
        """Times between one piece of text and the next."""
        return [after - before for before, after in pairwise(self.pieces_s)]

    def tokens_until(self, moment_s: float) -> float:
        """Output tokens that had come by then, the pieces taken as equally large."""
        if not self.pieces_s:
            return 0.0
        return self.tokens * sum(piece <= moment_s for piece in self.pieces_s) / len(self.pieces_s)
