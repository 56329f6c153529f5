"""Runs the passes over a model, in order."""

import logging

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import Pass
from orcastream.engine.model.passes.compact_weights import CompactWeights
from orcastream.engine.model.passes.compile_decoder import CompileDecoder
from orcastream.engine.model.passes.fuse_gated_mlp import FuseGatedMLP
from orcastream.engine.model.passes.fuse_norm import FuseNorm
from orcastream.engine.model.passes.merge_projections import MergeProjections
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.native.library import why_unavailable

_log = logging.getLogger(__name__)


def passes_unavailable(device: torch.device) -> str | None:
    """Return why no pass can run for a model on `device`, or None if they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    return why_unavailable()


def apply_passes(model: PreTrainedModel, int8: bool = False) -> dict[str, int]:
    """Run all passes; return how many modules each replaced. A pass that fails is skipped and logged.

    With `int8` linear layers are rounded to 8 bits.
    """
    return pack_linears(model, int8) | fuse_modules(model)


def pack_linears(model: PreTrainedModel, int8: bool = False) -> dict[str, int]:
    """Run the pass on which all others build: it replaces linear layers one by one."""
    return _apply(model, PackLinears(int8))


def fuse_modules(model: PreTrainedModel) -> dict[str, int]:
    """Run the passes on packed layers: those that combine several modules, and the one that makes weights compact."""
    return _apply(model, MergeProjections(), CompactWeights(), CompileDecoder(), FuseGatedMLP(), FuseNorm())


@torch.inference_mode()
def _apply(model: PreTrainedModel, *passes: Pass) -> dict[str, int]:
    replaced = {}
    for each in passes:
        try:
            replaced[each.name] = each.apply(model)
        except Exception as error:
            _log.warning("model pass %s left out: %r", each.name, error)
    return replaced
