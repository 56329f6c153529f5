"""Penalties and biases: what a request's parameters do to its logits before a token is chosen."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orcastream.schemas.candidates import CHANGING_LOGITS
from orcastream.schemas.sampling import SamplingParams

if TYPE_CHECKING:
    import torch


class LogitChanges:
    """Those of one request, which follow from its tokens alone: whoever goes on with it makes the same ones.

    A token's logit is divided by the repetition penalty where it is above 0, else multiplied (Keskar et al., 2019), if
    prompt or output has the token; then its bias is added, and the frequency penalty for each time that the output has
    it and the presence penalty if it does are taken off.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self._repetition = params.repetition_penalty
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        self._repeated = set(prompt) if self._repetition != 1 else set()
        self._added = dict(params.logit_bias)
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
            if self._repetition != 1:
                self._repeated.add(token)
            if self._frequency or self._presence:
                taken = self._frequency + (0.0 if token in self._counted else self._presence)
                self._added[token] = self._added.get(token, 0.0) - taken
                self._counted.add(token)
        self._num_seen = len(outputs)

    def apply(self, scores: "torch.Tensor") -> None:
        """Change one row of logits `[vocab]`, float32, in place."""
        import torch  # here, as requests are made where nobody waits for it

        if self._repeated:
            where = torch.tensor(list(self._repeated), device=scores.device)
            values = scores[where]
            scores[where] = torch.where(values > 0, values / self._repetition, values * self._repetition)
        if self._added:
            where = torch.tensor(list(self._added), device=scores.device)
            scores[where] += torch.tensor(list(self._added.values()), device=scores.device)
