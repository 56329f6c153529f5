"""Loads a model's weights, and resolves settings from its configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from orcastream.engine.config import EngineConfig
from orcastream.engine.errors import UnsupportedModel, is_thread_refused, one_line
from orcastream.engine.memory_errors import is_out_of_memory
from orcastream.engine.model.checkpoint import (
    refuse_cut_blocks,
    refuse_damaged_files,
    refuse_damaged_generation_config,
    refuse_incomplete,
    refuse_integer_weights,
    refuse_unfit_parts,
    refuse_unknown_quantization,
)
from orcastream.engine.model.quiet import quiet
from orcastream.engine.native.instruction_sets import computes_bfloat16
from orcastream.schemas.model_limits import context_length


def resolve_device(name: str) -> torch.device:
    """Return the device with that name; `auto` prefers CUDA. Raises ValueError if CUDA is requested but missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: got 'cuda', allowed: cpu (torch finds no CUDA device)")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device, model_config: Any) -> torch.dtype:
    """Return the dtype with that name; `auto` is the checkpoint's own if the device computes in it, else float32.

    A CPU computes in bfloat16 if it has the instructions, but never in float16, which would be slower than float32.
    """
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    own = getattr(model_config, "dtype", None) or getattr(model_config.get_text_config(), "dtype", None)
    if device.type == "cpu" and not (own is torch.bfloat16 and computes_bfloat16()):
        return torch.float32
    return own if isinstance(own, torch.dtype) else torch.float32


def load_model_config(config: EngineConfig) -> Any:
    """Return the transformers configuration.

    Raises UnsupportedModel if it cannot be read, or if its architecture is not a causal language model built into
    transformers: code that comes with a model is never run. Raises OSError if there is none.
    """
    _refuse_missing(config.model)
    with quiet(), one_line_errors(f"{config.model}: config.json"):
        found = AutoConfig.from_pretrained(config.model, trust_remote_code=False)
        if type(found) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise UnsupportedModel(f"{type(found).__name__} is not a causal language model that transformers knows")
        for each in (found, found.get_text_config()):
            if getattr(each, "output_router_logits", False):
                each.output_router_logits = False  # left behind by a training, whose loss alone reads them
        return found


def _refuse_missing(model: str) -> None:
    """Raise UnsupportedModel for a directory without a model, OSError for a path that leads to no directory."""
    folder = Path(model)
    told = f"model: got {model!r}, allowed: a directory with a config.json, or a hub id"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UnsupportedModel(told)
    elif model.startswith(("/", "./", "../", "~")):  # as no hub id does
        raise FileNotFoundError(told)


def load_model(config: EngineConfig, model_config: Any, device: torch.device) -> PreTrainedModel:
    """Return the model with its weights on `device`, ready to compute.

    Raises UnsupportedModel if the checkpoint does not have exactly the weights that `model_config` requires, or is
    damaged; OSError if a file is missing.
    """
    dtype = resolve_dtype(config.dtype, device, model_config)
    with quiet(), one_line_errors(config.model):
        refuse_unknown_quantization(model_config)
        model, loaded = _read_weights(config.model, model_config, dtype)
        refuse_incomplete(model, loaded)
        refuse_integer_weights(config.model, model_config, model, loaded)
        refuse_cut_blocks(config.model, model_config, model)
        refuse_damaged_generation_config(config.model)
    with quiet():
        placed: PreTrainedModel = model.to(device).eval()
        return placed


def _read_weights(model: str, model_config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    try:
        loaded: tuple[Any, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(
            model,
            config=model_config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            output_loading_info=True,
            # So that the loading info lists them, instead of a table in the log.
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        if not is_out_of_memory(error):
            refuse_damaged_files(model)
            refuse_unfit_parts(error)
        raise
    return loaded


@contextmanager
def one_line_errors(where: str) -> Iterator[None]:
    """Turn any error of transformers into a one-line OSError or UnsupportedModel that starts with `where`.

    A lack of memory or threads stays what it is: it is no property of the model.
    """
    try:
        yield
    except UnsupportedModel as error:
        reason = error.reason
        raise UnsupportedModel(reason if reason.startswith(where) else f"{where}: {reason}") from error
    except Exception as error:
        if is_out_of_memory(error) or is_thread_refused(error):
            raise
        if isinstance(error, OSError):
            raise OSError(f"{where}: {one_line(error)}") from error
        reason = one_line(error) or type(error).__name__
        if isinstance(error, KeyError):  # whose text is only the key
            reason = f"no entry {reason}"
        if "trust_remote_code" in reason:
            reason = "wants to run code of its own (auto_map), which is never done"
        raise UnsupportedModel(f"{where}: {reason}") from error


def resolve_max_model_len(config: EngineConfig, model_config: Any) -> int:
    """Return the most tokens of prompt and output: the model's limit, or a lower configured one. Raises ValueError."""
    text_config = model_config.get_text_config()
    return context_length(lambda name: getattr(text_config, name, None), config.max_model_len)


def eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """Return the ids that end an output, from the generation configuration and the model's own configuration.

    Ids that the model does not have, such as -1 or one beyond its vocabulary, are ignored. Raises UnsupportedModel for
    a value that is not an id.
    """
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        given = getattr(source, "eos_token_id", None)
        ids = [] if given is None else given if isinstance(given, list | tuple) else [given]
        if any(type(each) is not int for each in ids):
            raise UnsupportedModel(f"eos_token_id: got {given!r}, allowed: an integer, or a list of them")
        found.update(ids)
    vocab_size = model.config.get_text_config().vocab_size
    return frozenset(token for token in found if 0 <= token < vocab_size)
