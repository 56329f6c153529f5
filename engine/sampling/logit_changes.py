"""Penalties and biases: the changes that requests' parameters make to logits before tokens are chosen."""

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from orcastream.schemas.candidates import CHANGING_LOGITS
from orcastream.schemas.sampling import SamplingParams

if TYPE_CHECKING:
    import torch

_LEAST_PENALTY = 1e-30
"""A logit divided by less might overflow; divided by this little, positive logits rank before all others anyway."""


class LogitChanges:
    """The changes of one request. They follow from its tokens alone, so an engine that takes it over makes the same.

    If prompt or output contain a token, its logit is divided by the repetition penalty if it is above 0, and multiplied
    otherwise (Keskar et al., 2019). Then its bias is added, and the frequency penalty is subtracted for each occurrence
    in the output, and the presence penalty once if there is any.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self.penalty = max(params.repetition_penalty, _LEAST_PENALTY)
        """Repetition penalty of the tokens in `repeated`."""
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
        """Return the changes of a request; None if its parameters change nothing."""
        if all(getattr(params, name) == unchanged for name, unchanged in CHANGING_LOGITS.items()):
            return None
        return cls(params, prompt)

    def see(self, outputs: Sequence[int]) -> None:
        """Process the output tokens that are new since the last call; `outputs` are all output tokens."""
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
    """Apply `changes[i]` to row i of `scores` `[n, vocab]`, float32, contiguous, in place; all rows at once.

    Each row gets bit for bit the result that it would get alone: no two of its changes affect the same logit.
    """
    # Here, so that creating requests does not wait for torch.
    import torch

    from orcastream.engine.batch.transfer import all_copied

    made = [(row * scores.shape[1], one) for row, one in enumerate(changes) if one is not None]
    repeated = [(start, one.repeated, one.penalty) for start, one in made if one.repeated]
    shifted = [(start, one.shifted, one.shifts) for start, one in made if one.shifted]
    if not repeated and not shifted:
        return
    penalties = np.repeat([penalty for _, _, penalty in repeated], [len(tokens) for _, tokens, _ in repeated])
    shifts = np.concatenate([np.frombuffer(each) for _, _, each in shifted] or [_NO_NUMBERS])
    arrays = [
        _places([(start, tokens) for start, tokens, _ in repeated]),
        penalties.astype(np.float64),
        _places([(start, tokens) for start, tokens, _ in shifted]),
        shifts,
    ]
    repeated_at, factors, shifted_at, added = all_copied(arrays, scores.device)
    flat = scores.view(-1)
    if repeated:
        values, factors = flat[repeated_at], factors.float()
        flat[repeated_at] = torch.where(values > 0, values / factors, values * factors)
    if shifted:
        flat[shifted_at] += added.float()


def _places(tokens: Sequence[tuple[int, "array[int]"]]) -> npt.NDArray[np.int64]:
    """Return flat indices into consecutive rows; each entry has the start of a row and the tokens in it."""
    places = [np.frombuffer(some, dtype=np.int64) + start for start, some in tokens]
    return np.concatenate(places) if places else _NO_NUMBERS.view(np.int64)


_NO_NUMBERS = np.empty(0)
