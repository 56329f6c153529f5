"""Which passes there are, and when they run."""

import logging

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import Pass
from orcastream.engine.model.passes.compile_decoder import CompileDecoder
from orcastream.engine.model.passes.fuse_gated_mlp import FuseGatedMLP
from orcastream.engine.model.passes.fuse_norm import FuseNorm
from orcastream.engine.model.passes.merge_projections import MergeProjections
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.native.library import why_unavailable

_log = logging.getLogger(__name__)


def passes_unavailable(device: torch.device) -> str | None:
    """Why no pass can run for a model on `device`; None: they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    return why_unavailable()


@torch.inference_mode()
def apply_passes(model: PreTrainedModel, int8: bool = False) -> dict[str, int]:
    """Run all of them; how many modules each replaced. A pass that fails is left out with a log line.

    With `int8` linear layers are rounded to 8 bits.
    """
    passes: tuple[Pass, ...] = (PackLinears(int8), MergeProjections(), CompileDecoder(), FuseGatedMLP(), FuseNorm())
    replaced = {}
    for each in passes:
        try:
            replaced[each.name] = each.apply(model)
        except Exception as error:
            _log.warning("model pass %s left out: %r", each.name, error)
    return replaced
