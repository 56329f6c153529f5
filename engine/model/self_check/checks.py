"""All checks of a model before its first request, and the one on its loaded weights."""

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.self_check.deviation import Deviation
from orcastream.engine.model.self_check.reference import Reference
from orcastream.engine.model.self_check.schedule import SHORT
from orcastream.engine.model.self_check.small_copy import check_small_copy
from orcastream.engine.model.support import refuse_unsupported

_TOLERANCE = {torch.float32: 2e-3}
_LOW_PRECISION_TOLERANCE = 0.2
"""16 bits alone put many layers of random weights 0.12 off from float32; what is computed otherwise is 1 off, and the
small copy, in float32, exposes what differs less."""


def check_model(model: PreTrainedModel, backend: AttentionBackend, max_model_len: int) -> None:
    """Run all checks that are possible before the first request. Raises UnsupportedModel with the reason."""
    refuse_unsupported(model.config, max_model_len)
    check_small_copy(model, backend, max_model_len)
    check_loaded(model, backend, Reference.of(model, max_model_len))


def check_loaded(
    model: PreTrainedModel, backend: AttentionBackend, reference: Reference, *, rounded: bool = False
) -> None:
    """Compare on the loaded weights. Raises UnsupportedModel if the logits differ by more than rounding.

    `reference` is of the same weights. Modules of `model` may have been replaced since then; with `rounded` their
    weights have fewer bits.
    """
    error = Deviation.of(model, backend, reference, SHORT)
    exact = model.dtype in _TOLERANCE and not rounded
    tolerance = _TOLERANCE[model.dtype] if exact else _LOW_PRECISION_TOLERANCE
    # In 16 bits a router may choose other experts for single tokens, so only the median row must match.
    measured = error.of_all if exact else error.of_median
    if measured <= tolerance:
        return
    if not all(bool(logits.isfinite().all()) for logits in reference.logits):
        raise UnsupportedModel(
            f"{type(model).__name__} computes logits in {str(model.dtype).removeprefix('torch.')} that are not finite, "
            "also by its own attention: its weights are damaged, or its numbers are beyond that format"
        )
    raise UnsupportedModel(
        f"{type(model).__name__} computes other logits in a flat batch than alone: relative error "
        f"{measured:.2g} on the loaded weights, allowed {tolerance}"
    )
