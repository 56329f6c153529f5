"""What one iteration computes."""

from dataclasses import dataclass, field
from typing import Final

from orcastream.engine.request import Request, RequestState

MOST_PROMPT_ROWS: Final = 512
"""Most prompt tokens of one iteration whose log probabilities are told: each takes a row of logits as wide as the
vocabulary, however long the prompt is."""


@dataclass(slots=True)
class Plan:
    """`lengths[i]` tokens of `requests[i]`, from its first uncomputed one on; every token has its slot in the cache.

    The first `num_decodes` are decode steps of one token. Plain lists, for a plan is made before every iteration.
    """

    requests: list[Request] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_decodes: int = 0

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        """Tokens of the flat batch."""
        return sum(self.lengths)

    @property
    def prefill_tokens(self) -> int:
        """Tokens that are no decode step."""
        return self.num_tokens - self.num_decodes

    @property
    def num_prefills(self) -> int:
        """Requests of which it computes a chunk."""
        return len(self.requests) - self.num_decodes

    def add(self, request: Request, length: int) -> None:
        """Compute `length` tokens of `request`, too: a decode step goes behind the other ones, a chunk to the end."""
        decodes = request.state is RequestState.INCREMENT
        where = self.num_decodes if decodes else len(self.requests)
        self.requests.insert(where, request)
        self.lengths.insert(where, length)
        self.num_decodes += decodes

    def left_for(self, request: Request, left: int) -> int:
        """How many of the `left` tokens of the budget may be of `request`."""
        if not request.tells_prompt:
            return left
        told = [length for other, length in zip(self.requests, self.lengths, strict=True) if other.tells_prompt]
        return min(left, MOST_PROMPT_ROWS - sum(told))

    def drop_preempted(self) -> int:
        """Take out what was preempted after it had been planned; the tokens that this sets free."""
        kept = [
            (request, length)
            for request, length in zip(self.requests, self.lengths, strict=True)
            if request.state is not RequestState.WAITING
        ]
        if len(kept) == len(self):
            return 0
        before = self.num_tokens
        self.requests, self.lengths = [request for request, _ in kept], [length for _, length in kept]
        self.num_decodes = sum(request.state is RequestState.INCREMENT for request in self.requests)
        return before - self.num_tokens

    def only(self, index: int) -> "Plan":
        """One of its requests alone."""
        return Plan([self.requests[index]], [self.lengths[index]], int(index < self.num_decodes))


def chunk_length(request: Request, left: int, block_size: int, *, alone: bool) -> int:
    """Tokens of `request` to compute: all, or what fits into `left`, up to the end of a block.

    Less than up to the end of a block where it is the `alone` prefill, so that it never stands still.
    """
    start, wanted = request.num_computed, request.num_uncomputed
    if wanted <= left:
        return wanted
    aligned = (start + left) // block_size * block_size - start
    return aligned if aligned > 0 else max(left, 0) * alone
