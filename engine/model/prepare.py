"""A model from its checkpoint to ready: loaded, made faster, checked."""

import logging
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.config import EngineConfig
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.compiled_decoder import ATTRIBUTE
from orcastream.engine.model.load import load_model
from orcastream.engine.model.passes import apply_passes, passes_unavailable
from orcastream.engine.model.passes.compile_decoder import KNOWN_TYPES
from orcastream.engine.model.passes.pack_linears import PackLinears
from orcastream.engine.model.self_check import Reference, check_loaded, check_small_copy

_log = logging.getLogger(__name__)


def prepare_model(
    config: EngineConfig, model_config: Any, device: torch.device, backend: AttentionBackend, max_model_len: int
) -> PreTrainedModel:
    """Load the model and let the passes run over it; UnsupportedModel where it would not be computed right.

    The self-check compares what is then computed with the model as it was loaded. Where it fails because of the passes,
    the model is loaded anew and goes without them, with a log line.
    """
    model = load_model(config, model_config, device)
    if not config.self_check:
        _run_passes(config, model)
        if model.config.model_type not in KNOWN_TYPES and hasattr(model, ATTRIBUTE):
            delattr(model, ATTRIBUTE)  # nothing would tell whether it only looks like one of the kind
        return model
    check_small_copy(model, backend, max_model_len)
    reference = Reference.of(model, max_model_len)
    if not _run_passes(config, model):
        check_loaded(model, backend, reference)
        return model
    for give_up in (_without_decoder, _loaded_anew):
        try:
            check_loaded(model, backend, reference, rounded=config.weight_dtype == "int8")
        except UnsupportedModel as error:
            model = give_up(config, model_config, device, model, error)
        else:
            return model
    check_loaded(model, backend, reference)
    return model


def _without_decoder(
    config: EngineConfig, model_config: Any, device: torch.device, model: PreTrainedModel, error: UnsupportedModel
) -> PreTrainedModel:
    if hasattr(model, ATTRIBUTE):
        delattr(model, ATTRIBUTE)
        _log.warning("the compiled decoder does not fit this model, which is computed by its modules: %s", error.reason)
    return model


def _loaded_anew(
    config: EngineConfig, model_config: Any, device: torch.device, model: PreTrainedModel, error: UnsupportedModel
) -> PreTrainedModel:
    if config.weight_dtype == "int8":
        raise UnsupportedModel(f"weight_dtype: got 'int8', allowed for this model: auto ({error.reason})") from error
    _log.warning("the model passes do not fit this model, which is computed without them: %s", error.reason)
    del model
    return load_model(config, model_config, device)


def _run_passes(config: EngineConfig, model: PreTrainedModel) -> bool:
    """Whether there is any module that they replaced."""
    if config.model_passes == "off":
        return False
    reason = passes_unavailable(model.device)
    if reason is not None:
        if config.weight_dtype == "int8":
            raise ValueError(f"weight_dtype: got 'int8', allowed: auto (no compiled operators: {reason})")
        if model.device.type == "cpu":
            _log.warning("model passes left out: no compiled operators: %s", reason)
        return False
    replaced = apply_passes(model, config.weight_dtype == "int8")
    if config.weight_dtype == "int8" and not replaced.get(PackLinears.name):
        raise UnsupportedModel("weight_dtype: got 'int8', allowed for this model: auto (no linear layer took 8 bits)")
    _log.info("model passes: %s", ", ".join(f"{name} {count}" for name, count in replaced.items()))
    return any(replaced.values())
