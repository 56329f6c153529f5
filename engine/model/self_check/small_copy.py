"""The self-check on a small random copy of a model, whose thresholds are shorter than the check."""

from collections.abc import Collection
from functools import cached_property, partial

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check.deviation import Deviation
from orcastream.engine.model.self_check.reference import Reference, attend_eagerly, own_logits
from orcastream.engine.model.self_check.schedule import LONG
from orcastream.engine.model.tiny_copy import POSITIONS, thresholds, tiny_copy

_PROBE_TOKENS = 1024
"""Tokens of the small copy's probe. Some architectures keep one more key for every 128 tokens of the stream."""

_TOLERANCE = 5e-4
_ROUNDINGS = 4
"""How many times the distance between its own float32 and float64 logits a small copy's error may be. Some
architectures, such as Gemma 3n, amplify rounding beyond the tolerance, depending on the processor."""


class SmallCopy:
    """A small random float32 model of the same architecture as another, and its own logits."""

    def __init__(self, model: PreTrainedModel, shrunk: Collection[str], longest: int) -> None:
        """`shrunk` as for `tiny_copy`; sequences have at most `longest` tokens."""
        self._new_copy = partial(tiny_copy, model, shrunk)
        self._model = self._new_copy()
        self._reference = Reference.of(self._model, longest, LONG)

    def compare(self, backend: AttentionBackend) -> tuple[float, float]:
        """Return the error of its worst row in flat batches, relative to the spread of the row, and what is allowed."""
        error = Deviation.of(self._model, backend, self._reference, LONG).of_all
        return error, self.tolerance(error)

    def tolerance(self, error: float) -> float:
        """Return the largest error that rounding explains; measured only if `error` exceeds the usual tolerance."""
        return _TOLERANCE if error <= _TOLERANCE else self._amplified_tolerance

    @cached_property
    def _amplified_tolerance(self) -> float:
        exact = self._new_copy().double()
        try:
            logits = [own_logits(exact, sequence) for sequence in self._reference.sequences]
        except Exception:  # it computes in one dtype only
            return _TOLERANCE
        rounding = Deviation.between(torch.cat(self._reference.logits), torch.cat(logits))
        return max(_TOLERANCE, _ROUNDINGS * rounding.of_all)

    def by_itself(self) -> PreTrainedModel:
        """Return the model with its own attention, for passes that replace its modules."""
        attend_eagerly(self._model)
        return self._model

    def check(self, backend: AttentionBackend) -> None:
        """Raise UnsupportedModel if the model, whose modules were replaced, computes something else."""
        found, allowed = self.compare(backend)
        if found > allowed:
            raise UnsupportedModel(f"relative error {found:.2g} on a small random copy, allowed {allowed:.2g}")


def check_small_copy(model: PreTrainedModel, backend: AttentionBackend, max_model_len: int) -> SmallCopy:
    """Compare on a small random copy whose windows, chunk sizes and original lengths are shorter than the check.

    A check on the loaded weights cannot detect a threshold of thousands of tokens. A threshold that `max_model_len`
    never reaches is unchanged. Returns the copy. Raises UnsupportedModel, which names the thresholds not respected.
    """
    longest = min(POSITIONS, max_model_len)
    crossed = {threshold.name: threshold.tokens for threshold in thresholds(model.config, max_model_len)}

    def is_same(shrunk: Collection[str]) -> bool:
        error, allowed = SmallCopy(model, shrunk, longest).compare(backend)
        return error <= allowed

    copy = SmallCopy(model, crossed, longest)
    found, allowed = copy.compare(backend)
    if found <= allowed:
        ModelRunner(tiny_copy(model, ()), backend).probe(_PROBE_TOKENS, longest)
        return copy
    broken = {name: tokens for name, tokens in crossed.items() if not is_same([name])}
    if broken and is_same(()):
        named = ", ".join(f"{name}={tokens}" for name, tokens in broken.items())
        raise UnsupportedModel(
            f"{type(model).__name__} does not keep {named} in a flat batch, as its attention layers do not receive it; "
            f"it can run with max_model_len of at most {min(broken.values())}"
        )
    raise UnsupportedModel(
        f"{type(model).__name__} computes other logits in a flat batch than alone: relative error {found:.2g} on "
        f"a small random copy, allowed {allowed:.2g}"
    )
