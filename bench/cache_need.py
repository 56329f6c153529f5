"""The KV cache that a model needs.

The model is built from its configuration without weights, and the engine's own probe finds every attention layer, so
grouped heads, keys and values of different sizes, and sliding windows are counted as the engine will allocate them.
"""

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from orcastream.engine.attention import TorchBackend
from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.layout import LayerGroup, group_layers
from orcastream.engine.model.load import load_model_config, one_line_errors
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.runner import ModelRunner, resolve_cache_dtype

CHUNK, BLOCK_SIZE = 512, 16


def make_runner(model: str, cache_dtype: str) -> ModelRunner:
    """Return the model without weights.

    Raises UnsupportedModel or ValueError if the engine cannot run it, OSError if it is not there.
    """
    if model.startswith("type:"):
        with one_line_errors(model), quiet():
            config = CONFIG_MAPPING[model.removeprefix("type:")]()
    else:
        config = load_model_config(EngineConfig(model))
    with one_line_errors(model), quiet(), torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
    return ModelRunner(built, TorchBackend(), resolve_cache_dtype(cache_dtype))


def bytes_per_token(runner: ModelRunner) -> int:
    """Return the bytes of one token in the KV cache of all layers."""
    return sum(runner.bytes_per_block(layer, 1) for layer in range(len(runner.shapes)))


def bytes_per_sequence(runner: ModelRunner, num_tokens: int, *, windows: bool = True) -> int:
    """Return the maximum bytes that a sequence of `num_tokens` holds at once, computed in chunks of CHUNK tokens."""
    groups = group_layers(runner.shapes, num_tokens)
    return sum(
        _most_blocks(group if windows else LayerGroup(None, group.layers), num_tokens)
        * sum(runner.bytes_per_block(layer, BLOCK_SIZE) for layer in group.layers)
        for group in groups
    )


def _most_blocks(group: LayerGroup, num_tokens: int) -> int:
    return GroupCache(
        0,
        group,
        num_blocks=1,
        block_size=BLOCK_SIZE,
        num_rows=1,
        width=1,
        longest_span=CHUNK,
        store=None,
        num_host_slots=0,
    ).most_blocks(num_tokens)
