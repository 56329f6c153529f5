"""What one iteration computes."""

from dataclasses import dataclass, field

from engine.request import Request


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

    def only(self, index: int) -> "Plan":
        """One of its requests alone."""
        return Plan([self.requests[index]], [self.lengths[index]], int(index < self.num_decodes))
