"""Prepares a model from its checkpoint: loads it, applies passes, checks the result."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.config import EngineConfig
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.load import load_model
from orcastream.engine.model.passes import (
    Pass,
    added_passes,
    apply_passes,
    fuse_modules,
    pack_linears,
    passes_unavailable,
)
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.model.passes.recognize import KNOWN_TYPES
from orcastream.engine.model.self_check import Reference, SmallCopy, check_loaded, check_model, check_small_copy

_log = logging.getLogger(__name__)

_Passes = Sequence[type[Pass]]


def prepare_model(
    config: EngineConfig, model_config: Any, device: torch.device, backend: AttentionBackend, max_model_len: int
) -> PreTrainedModel:
    """Load the model and apply the passes. Raises UnsupportedModel if it would not be computed correctly.

    The self-check compares the result with the model's own computation: as loaded, or with packed linear layers, each
    of which was compared with the original. If it fails because of the passes, the model is loaded again and computed
    without those of other packages, then without any, and a line is logged.
    """
    takes_passes = _takes_passes(config, device)
    if not config.self_check:
        model = load_model(config, model_config, device)
        if takes_passes:
            make_faster_unchecked(model, int8=config.weight_dtype == "int8")
        return model
    for added in _attempts(device) if takes_passes else ():
        model = load_model(config, model_config, device)
        small = check_small_copy(model, backend, max_model_len)
        why = _make_faster(config, model, added, small, backend, max_model_len)
        if why is None:
            return model
        if config.weight_dtype == "int8" and not added:
            raise UnsupportedModel(f"weight_dtype: got 'int8', allowed for this model: auto ({why})")
        passes = f"passes {', '.join(each.name for each in added)}" if added else "model passes"
        _log.warning("the %s do not fit this model, which is computed without them: %s", passes, why)
        del model, small  # both hold its memory
    model = load_model(config, model_config, device)
    check_model(model, backend, max_model_len)
    return model


def _attempts(device: torch.device) -> Sequence[_Passes]:
    """Return the passes of other packages to run in addition to the engine's own, in each attempt."""
    added = _added(device)
    return [added, ()] if added else [()]


def _added(device: torch.device) -> _Passes:
    """Return the passes of other packages for models on `device`."""
    return added_passes() if device.type == "cpu" else ()


def make_faster_unchecked(model: PreTrainedModel, *, int8: bool = False) -> None:
    """Run the passes without a self-check; only a model of a known type is computed as a whole decoder.

    Raises UnsupportedModel if int8 weights are wanted but no layer could be packed.
    """
    _report(_pack(model, int8) | fuse_modules(model, _added(model.device)))
    if model.config.model_type not in KNOWN_TYPES and hasattr(model, ATTRIBUTE):
        delattr(model, ATTRIBUTE)  # without a self-check, nothing would detect a model that only looks supported


def _make_faster(
    config: EngineConfig,
    model: PreTrainedModel,
    added: _Passes,
    small: SmallCopy,
    backend: AttentionBackend,
    max_model_len: int,
) -> str | None:
    """Run the passes and the self-check, with `small`; return why the model must do without them, or None."""
    int8 = config.weight_dtype == "int8"
    reference = Reference.of(model, max_model_len) if int8 else None
    replaced = _pack(model, int8)
    try:
        if reference is None:  # a CPU is several times as fast as with torch's linear layers, which repack on each call
            reference = Reference.of(model, max_model_len)
        _report(replaced | fuse_modules(model, added))
        if hasattr(model, ATTRIBUTE) or added:
            _check_on_copy(model, small, added, backend)
        _check_replaced(model, backend, reference, rounded=int8)
    except UnsupportedModel as error:
        return error.reason
    return None


def _check_on_copy(model: PreTrainedModel, small: SmallCopy, added: _Passes, backend: AttentionBackend) -> None:
    """Drop the compiled decoder if the small copy is not recognized, or its decoder computes something else.

    The decoder replaces parts that may do more than their names say: a threshold that the check on the loaded weights
    does not reach, or a factor hidden by 16-bit rounding. The engine's other passes replace parts that depend only on
    their input. Raises UnsupportedModel if passes of other packages compute something else.
    """
    copy = small.by_itself()
    apply_passes(copy, added=added)
    why = None
    if hasattr(model, ATTRIBUTE):
        try:
            if not hasattr(copy, ATTRIBUTE):
                raise UnsupportedModel("a small copy is of another kind")
            small.check(backend)
            return
        except UnsupportedModel as error:
            why = error.reason
    if added:
        vars(copy).pop(ATTRIBUTE, None)
        small.check(backend)
    if why is not None:
        _leave_out_decoder(model, why)


def _leave_out_decoder(model: PreTrainedModel, why: str) -> None:
    delattr(model, ATTRIBUTE)
    _log.warning("the compiled decoder does not fit this model, which is computed by its modules: %s", why)


def _check_replaced(model: PreTrainedModel, backend: AttentionBackend, reference: Reference, *, rounded: bool) -> None:
    """Check the loaded weights; drop the compiled decoder if it causes the difference, else raise UnsupportedModel."""
    try:
        check_loaded(model, backend, reference, rounded=rounded)
    except UnsupportedModel as error:
        if not hasattr(model, ATTRIBUTE):
            raise
        _leave_out_decoder(model, error.reason)
        check_loaded(model, backend, reference, rounded=rounded)


def _takes_passes(config: EngineConfig, device: torch.device) -> bool:
    """Whether passes are wanted and can run. Raises ValueError if int8 weights are wanted but passes cannot run."""
    if config.model_passes == "off":
        return False
    reason = passes_unavailable(device)
    if config.weight_dtype == "int8" and device.type != "cpu":
        reason = f"no compiled operators: they are for CPUs, not for {device}"
    if reason is None:
        return True
    if config.weight_dtype == "int8":
        raise ValueError(f"weight_dtype: got 'int8', allowed: auto ({reason})")
    _log.warning("model passes left out: %s", reason)
    return False


def _pack(model: PreTrainedModel, int8: bool) -> dict[str, int]:
    """Run the first pass. Raises UnsupportedModel if int8 weights are wanted but no layer could be packed."""
    replaced = pack_linears(model, int8)
    if int8 and not replaced.get(PackLinears.name):
        raise UnsupportedModel("weight_dtype: got 'int8', allowed for this model: auto (no linear layer took 8 bits)")
    return replaced


def _report(replaced: dict[str, int]) -> None:
    _log.info("model passes: %s", ", ".join(f"{name} {count}" for name, count in replaced.items()))
