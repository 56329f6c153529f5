"""Which passes there are, and when they run."""

import logging

import torch
from transformers import PreTrainedModel

from engine.model.passes.base import Pass
from engine.model.passes.compile_decoder import CompileDecoder
from engine.model.passes.fuse_gated_mlp import FuseGatedMLP
from engine.model.passes.fuse_norm import FuseNorm
from engine.model.passes.merge_projections import MergeProjections
from engine.model.passes.pack_linears import PackLinears
from engine.native.library import why_unavailable

_log = logging.getLogger(__name__)

PASSES: tuple[type[Pass], ...] = (PackLinears, MergeProjections, CompileDecoder, FuseGatedMLP, FuseNorm)
"""In their order."""


def passes_unavailable(device: torch.device) -> str | None:
    """Why no pass can run for a model on `device`; None: they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    return why_unavailable()


@torch.inference_mode()
def apply_passes(model: PreTrainedModel) -> dict[str, int]:
    """Run all of them; how many modules each replaced. A pass that fails is left out with a log line."""
    replaced = {}
    for kind in PASSES:
        try:
            replaced[kind.name] = kind().apply(model)
        except Exception as error:
            _log.warning("model pass %s left out: %r", kind.name, error)
    return replaced
