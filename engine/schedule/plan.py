"""The plan of one iteration: which tokens of which requests it computes."""

from dataclasses import dataclass, field
from typing import Final

from orcastream.engine.request import Request, RequestState

MOST_PROMPT_ROWS: Final = 512
"""Most prompt tokens per iteration whose log probabilities are reported: each takes a row of logits as wide as the
vocabulary, so this bounds their memory for prompts of any length."""


@dataclass(slots=True)
class Plan:
    """`lengths[i]` tokens of `requests[i]`, from its first uncomputed token on; every token has its slot in the cache.

    The first `num_decodes` entries are decode steps of one token. Plain lists, as every iteration makes a plan.
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
        """Tokens that are not decode steps."""
        return self.num_tokens - self.num_decodes

    @property
    def num_prefills(self) -> int:
        """Requests that have a prefill chunk in the plan."""
        return len(self.requests) - self.num_decodes

    def add(self, request: Request, length: int) -> None:
        """Add `length` tokens of `request`: a decode step after the other decode steps, a chunk at the end."""
        decodes = request.state is RequestState.INCREMENT
        where = self.num_decodes if decodes else len(self.requests)
        self.requests.insert(where, request)
        self.lengths.insert(where, length)
        self.num_decodes += decodes

    def left_for(self, request: Request, left: int) -> int:
        """Return how many of the `left` tokens of the budget `request` may use."""
        if not request.tells_prompt:
            return left
        told = [length for other, length in zip(self.requests, self.lengths, strict=True) if other.tells_prompt]
        return min(left, MOST_PROMPT_ROWS - sum(told))

    def drop_preempted(self) -> int:
        """Remove requests that were preempted after they had been planned. Return the number of freed tokens."""
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
        """Return a plan of request number `index` alone."""
        return Plan([self.requests[index]], [self.lengths[index]], int(index < self.num_decodes))


def chunk_length(request: Request, left: int, block_size: int, *, alone: bool) -> int:
    """Return the tokens of `request` to compute: all, or as many as fit into `left` and end with a block.

    If `alone`, it is the only prefill and may end inside a block, so that it always makes progress.
    """
    start, wanted = request.num_computed, request.num_uncomputed
    if wanted <= left:
        return wanted
    aligned = (start + left) // block_size * block_size - start
    return aligned if aligned > 0 else max(left, 0) * alone
