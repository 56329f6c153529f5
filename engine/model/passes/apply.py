"""Runs the passes over a model, in order."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import PASSES, Pass
from orcastream.engine.model.passes.compact_weights import CompactWeights
from orcastream.engine.model.passes.compile_decoder import CompileDecoder
from orcastream.engine.model.passes.fuse_decoder import FuseDecoder
from orcastream.engine.model.passes.fuse_gated_mlp import FuseGatedMLP
from orcastream.engine.model.passes.fuse_norm import FuseNorm
from orcastream.engine.model.passes.merge_projections import MergeProjections
from orcastream.engine.model.passes.pack_experts import PackExperts
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.triton_support import why_no_triton

_log = logging.getLogger(__name__)

_ON_PACKED: tuple[type[Pass], ...] = (MergeProjections, CompactWeights, CompileDecoder, FuseGatedMLP, FuseNorm)
"""Those for CPUs in their order: each builds on those before it."""

_ON_GPUS: tuple[type[Pass], ...] = (FuseDecoder, FuseNorm)
"""Those for GPUs, in their order."""


def passes_unavailable(device: torch.device) -> str | None:
    """Return why no pass can run for a model on `device`, or None if they can."""
    if device.type == "cpu":
        reason = why_unavailable()
        return None if reason is None else f"no compiled operators: {reason}"
    if device.type == "cuda":
        reason = why_no_triton(device)
        return None if reason is None else f"no Triton kernels: {reason}"
    return f"they are for CPUs and CUDA GPUs, not for {device}"


def added_passes() -> tuple[type[Pass], ...]:
    """Return the registered passes of other packages, which are for CPUs."""
    return tuple(each for each in PASSES.values() if each not in (PackExperts, PackLinears, *_ON_PACKED, *_ON_GPUS))


def apply_passes(model: PreTrainedModel, int8: bool = False, added: Sequence[type[Pass]] = ()) -> dict[str, int]:
    """Run all passes; return how many modules each replaced. A pass that fails is skipped and logged.

    With `int8` linear layers are rounded to 8 bits. `added` are passes of other packages.
    """
    return pack_linears(model, int8) | fuse_modules(model, added)


def pack_linears(model: PreTrainedModel, int8: bool = False) -> dict[str, int]:
    """Run the passes on which all others for CPUs build: they replace linear layers one by one. A GPU has none."""
    if model.device.type != "cpu":
        return {}
    return _apply(model, {each.name: partial(each, int8) for each in (PackExperts, PackLinears)})


def fuse_modules(model: PreTrainedModel, added: Sequence[type[Pass]] = ()) -> dict[str, int]:
    """Run the `added` passes, then all others, which combine several modules or make weights compact."""
    own = _ON_PACKED if model.device.type == "cpu" else _ON_GPUS
    return _apply(model, {each.name: each for each in (*added, *own)})


@torch.inference_mode()
def _apply(model: PreTrainedModel, passes: Mapping[str, Callable[[], Pass]]) -> dict[str, int]:
    replaced = {}
    for name, make in passes.items():
        try:
            replaced[name] = make().apply(model)
        except Exception as error:
            _log.warning("model pass %s left out: %r", name, error)
    return replaced
