"""Size of one token in a KV cache, from a model's config.json."""

import json
from pathlib import Path

_BYTES = {"float32": 4, "bfloat16": 2, "int8": 2}
"""The cache's bytes per number; with int8 weights the cache stays in bfloat16."""


def kv_bytes_per_token(model: str, dtype: str) -> int:
    """Return the size of all layers' keys and values. Raises ValueError if the configuration does not define it."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads")
    layers, kv_heads = config.get("num_hidden_layers"), config.get("num_key_value_heads", heads)
    if not layers or not kv_heads:
        raise ValueError(f"{model}/config.json: got no num_hidden_layers and heads, allowed: a model with both")
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * layers * kv_heads * head_dim * _BYTES[dtype])
