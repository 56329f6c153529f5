"""Description of a loaded model by the numbers that determine its speed."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from orcastream.engine.model.quiet import quiet

_SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def model_card(name: str, model: PreTrainedModel) -> dict[str, Any]:
    """Return name, architecture, parameters, bytes, dtype, device and shape as plain values."""
    text = model.config.get_text_config()
    shape = [field for field in _SHAPE if field not in (text.per_layer_attributes or ())]
    # From its configuration, because passes may have packed the loaded weights.
    with quiet(), torch.device("meta"):
        weights = list(AutoModelForCausalLM.from_config(model.config, dtype=model.dtype).parameters())
    return {
        "name": name,
        "architecture": type(model).__name__,
        "parameters": sum(weight.numel() for weight in weights),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        **{field: getattr(text, field) for field in shape if isinstance(getattr(text, field, None), int)},
    }
