"""Runs the passes over a model, in order."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import PASSES, Pass
from orcastream.engine.model.passes.compact_weights import CompactWeights
from orcastream.engine.model.passes.compile_decoder import CompileDecoder
from orcastream.engine.model.passes.fuse_gated_mlp import FuseGatedMLP
from orcastream.engine.model.passes.fuse_norm import FuseNorm
from orcastream.engine.model.passes.merge_projections import MergeProjections
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.native.library import why_unavailable

_log = logging.getLogger(__name__)

_ON_PACKED: tuple[type[Pass], ...] = (MergeProjections, CompactWeights, CompileDecoder, FuseGatedMLP, FuseNorm)
"""In their order: each builds on those before it."""


def passes_unavailable(device: torch.device) -> str | None:
    """Return why no pass can run for a model on `device`, or None if they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    return why_unavailable()


def added_passes() -> tuple[type[Pass], ...]:
    """Return the registered passes of other packages."""
    return tuple(each for each in PASSES.values() if each not in (PackLinears, *_ON_PACKED))


def apply_passes(model: PreTrainedModel, int8: bool = False, added: Sequence[type[Pass]] = ()) -> dict[str, int]:
    """Run all passes; return how many modules each replaced. A pass that fails is skipped and logged.

    With `int8` linear layers are rounded to 8 bits. `added` are passes of other packages.
    """
    return pack_linears(model, int8) | fuse_modules(model, added)


def pack_linears(model: PreTrainedModel, int8: bool = False) -> dict[str, int]:
    """Run the pass on which all others build: it replaces linear layers one by one."""
    return _apply(model, {PackLinears.name: partial(PackLinears, int8)})


def fuse_modules(model: PreTrainedModel, added: Sequence[type[Pass]] = ()) -> dict[str, int]:
    """Run the `added` passes, then those on packed layers: they combine several modules or make weights compact."""
    return _apply(model, {each.name: each for each in (*added, *_ON_PACKED)})


@torch.inference_mode()
def _apply(model: PreTrainedModel, passes: Mapping[str, Callable[[], Pass]]) -> dict[str, int]:
    replaced = {}
    for name, make in passes.items():
        try:
            replaced[name] = make().apply(model)
        except Exception as error:
            _log.warning("model pass %s left out: %r", name, error)
    return replaced
