"""The parameters of a beam search."""

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral

from orcastream.schemas.limits import MAX_LENGTH_PENALTY


@dataclass(frozen=True, slots=True)
class Beam:
    """A beam search of `width` hypotheses, the best `num_return` of which are the request's choices.

    The score of a finished hypothesis is the sum of its log probabilities, divided by its number of output tokens to
    the power of `length_penalty`. With `early_stopping` the search ends as soon as `width` hypotheses have finished;
    without it, when no running hypothesis can still do better. Both mean what they mean in transformers' `generate`.
    Raises ValueError, which names the invalid field.
    """

    width: int
    num_return: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.width, Integral) or self.width < 1:
            raise ValueError(f"beam_width: got {self.width}, allowed: an integer of at least 1")
        if not isinstance(self.num_return, Integral) or not 1 <= self.num_return <= self.width:
            raise ValueError(f"num_return: got {self.num_return}, allowed: 1 to beam_width ({self.width})")
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:
            most = MAX_LENGTH_PENALTY
            raise ValueError(f"length_penalty: got {self.length_penalty}, allowed: -{most} to {most}")

    def num_candidates(self, stop_token_ids: Collection[int]) -> int:
        """Return how many continuations a step considers: enough for `width` of them to continue."""
        return max(2, 1 + len(stop_token_ids)) * self.width

    def num_of_each(self, stop_token_ids: Collection[int]) -> int:
        """Return how many continuations of one hypothesis can matter: at most `width` of them continue, and all that
        rank before those end with a stop token."""
        return self.width + len(stop_token_ids)
