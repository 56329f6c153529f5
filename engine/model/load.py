"""Loading a model's weights and what its configuration says about it."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.config import EngineConfig
from engine.errors import UnsupportedModel
from engine.model.quiet import quiet


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` prefers CUDA."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: got 'cuda', allowed: cpu (torch finds no CUDA device)")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device, model_config: Any) -> torch.dtype:
    """The dtype of that name; `auto` is float32 on a CPU and the checkpoint's own elsewhere."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cpu":
        return torch.float32
    own = getattr(model_config, "dtype", None) or getattr(model_config.get_text_config(), "dtype", None)
    return own if isinstance(own, torch.dtype) else torch.float32


def load_model_config(config: EngineConfig) -> Any:
    """The transformers configuration; UnsupportedModel where transformers does not know the architecture."""
    with quiet():
        try:
            return AutoConfig.from_pretrained(config.model)
        except (KeyError, ValueError) as error:
            raise UnsupportedModel(f"{config.model}: {error}") from error


def load_model(config: EngineConfig, model_config: Any, device: torch.device) -> PreTrainedModel:
    """The model with its weights on `device`, ready to compute."""
    dtype = resolve_dtype(config.dtype, device, model_config)
    with quiet():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                config.model, config=model_config, dtype=dtype, attn_implementation="eager"
            )
        except ValueError as error:
            raise UnsupportedModel(f"{config.model}: {error}") from error
        return model.to(device).eval()


def resolve_max_model_len(config: EngineConfig, model_config: Any) -> int:
    """Most tokens of prompt and output: the model's own limit, or a lower one that is asked for."""
    text_config = model_config.get_text_config()
    own = getattr(text_config, "max_position_embeddings", None)
    if own is None:
        own = getattr(text_config, "max_seq_len", None) or getattr(text_config, "seq_length", None)
    if own is None and config.max_model_len is None:
        raise UnsupportedModel("the configuration names no max_position_embeddings; set max_model_len")
    if own is None or config.max_model_len is None:
        return int(own or config.max_model_len or 0)
    if config.max_model_len > own:
        raise ValueError(f"max_model_len: got {config.max_model_len}, allowed: at most {own}, the model's own limit")
    return config.max_model_len


def eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """The ids that end an output, of the generation configuration and of the model's own."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)
