"""What a beam search is asked for."""

from collections.abc import Collection
from dataclasses import dataclass

from orcastream.schemas.limits import MAX_LENGTH_PENALTY


@dataclass(frozen=True, slots=True)
class Beam:
    """A beam search of `width` hypotheses, the best `num_return` of which are the request's choices.

    A finished hypothesis scores the sum of its log probabilities over its number of output tokens to the power of
    `length_penalty`. `early_stopping` True ends as soon as `width` hypotheses have finished, False when no running one
    can still do better; both as transformers' `generate` understands them. ValueError names the field that is wrong.
    """

    width: int
    num_return: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if not self.width >= 1:
            raise ValueError(f"beam_width: got {self.width}, allowed: at least 1")
        if not 1 <= self.num_return <= self.width:
            raise ValueError(f"num_return: got {self.num_return}, allowed: 1 to beam_width ({self.width})")
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:
            most = MAX_LENGTH_PENALTY
            raise ValueError(f"length_penalty: got {self.length_penalty}, allowed: -{most} to {most}")

    def num_candidates(self, stop_token_ids: Collection[int]) -> int:
        """Continuations that are looked at in a step: enough for `width` to run on."""
        return max(2, 1 + len(stop_token_ids)) * self.width

    def num_of_each(self, stop_token_ids: Collection[int]) -> int:
        """Those of one hypothesis that can make a difference: no more than `width` of it run on or end, and what stands
        before them ends."""
        return self.width + len(stop_token_ids)
