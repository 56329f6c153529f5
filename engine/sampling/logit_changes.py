"""Penalties and biases: what requests' parameters do to their logits before tokens are chosen."""

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orcastream.schemas.candidates import CHANGING_LOGITS
from orcastream.schemas.sampling import SamplingParams

if TYPE_CHECKING:
    import torch

_LEAST_PENALTY = 1e-30
"""A logit divided by less might not be finite; by so little, all that is above 0 comes before all else anyway."""


class LogitChanges:
    """Those of one request, which follow from its tokens alone: whoever goes on with it makes the same ones.

    A token's logit is divided by the repetition penalty where it is above 0, else multiplied (Keskar et al., 2019), if
    prompt or output has the token; then its bias is added, and the frequency penalty for each time that the output has
    it and the presence penalty if it does are taken off.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self.penalty = max(params.repetition_penalty, _LEAST_PENALTY)
        """Of the tokens in `repeated`."""
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        self.repeated = array("q", dict.fromkeys(prompt) if self.penalty != 1 else ())
        """Each token once, as in `shifted`."""
        self._known = set(self.repeated)
        self.shifted = array("q", (token for token, _ in params.logit_bias))
        """Tokens to whose logits something is added."""
        self.shifts = array("d", (bias for _, bias in params.logit_bias))
        """What is added, token by token."""
        self._places = {token: place for place, token in enumerate(self.shifted)}
        self._counted: set[int] = set()
        self._num_seen = 0

    @classmethod
    def of(cls, params: SamplingParams, prompt: Iterable[int]) -> "LogitChanges | None":
        """None where the parameters change nothing."""
        if all(getattr(params, name) == unchanged for name, unchanged in CHANGING_LOGITS.items()):
            return None
        return cls(params, prompt)

    def see(self, outputs: Sequence[int]) -> None:
        """Take in the output tokens that are new since the last call; `outputs` are all of them."""
        for token in outputs[self._num_seen :]:
            if self.penalty != 1 and token not in self._known:
                self._known.add(token)
                self.repeated.append(token)
            if self._frequency or self._presence:
                self._take_off(token, self._frequency + (0.0 if token in self._counted else self._presence))
                self._counted.add(token)
        self._num_seen = len(outputs)

    def _take_off(self, token: int, amount: float) -> None:
        place = self._places.setdefault(token, len(self.shifted))
        if place == len(self.shifted):
            self.shifted.append(token)
            self.shifts.append(0.0)
        self.shifts[place] -= amount


def change_logits(scores: "torch.Tensor", changes: Sequence[LogitChanges | None]) -> None:
    """Make `changes[i]` in row i of `scores` `[n, vocab]`, float32, contiguous, in place; all rows at once.

    A row is changed to the bit as it would be alone: no two of its changes meet in one logit.
    """
    import torch  # here, as requests are made where nobody waits for it

    flat = scores.view(-1)
    made = [(row * scores.shape[1], one) for row, one in enumerate(changes) if one is not None]
    repeated = [(start, one.repeated, one.penalty) for start, one in made if one.repeated]
    if repeated:
        where = _places([(start, tokens) for start, tokens, _ in repeated]).to(scores.device)
        lengths = torch.tensor([len(tokens) for _, tokens, _ in repeated])
        penalties = torch.tensor([penalty for _, _, penalty in repeated]).repeat_interleave(lengths).to(scores.device)
        values = flat[where]
        flat[where] = torch.where(values > 0, values / penalties, values * penalties)
    shifted = [(start, one) for start, one in made if one.shifted]
    if shifted:
        where = _places([(start, one.shifted) for start, one in shifted]).to(scores.device)
        shifts = torch.cat([torch.frombuffer(one.shifts, dtype=torch.float64) for _, one in shifted])
        flat[where] += shifts.float().to(scores.device)


def _places(tokens: Sequence[tuple[int, "array[int]"]]) -> "torch.Tensor":
    """Places in rows that lie behind one another, each given as where it begins and which of its tokens."""
    import torch

    return torch.cat([torch.frombuffer(some, dtype=torch.int64) + start for start, some in tokens])
