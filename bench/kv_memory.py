"""How much KV cache a model needs per token.

The model is built from its configuration without weights, and the engine's own probe finds every layer that attends,
so grouped heads, and keys and values of different sizes, are counted as the engine will allocate them.
"""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM

from bench.flags import Parser
from cli.errors import UserError
from engine.attention import choose_backend
from engine.config import EngineConfig
from engine.errors import UnsupportedModel
from engine.model.load import load_model_config
from engine.model.quiet import quiet
from engine.model.runner import ModelRunner


def bytes_per_token(model: str, dtype: torch.dtype) -> int:
    """Bytes that one token takes in the KV cache of all layers. UnsupportedModel where the engine cannot run it."""
    config = load_model_config(EngineConfig(model))
    with quiet(), torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    runner = ModelRunner(built, choose_backend("auto", torch.device("cpu")))
    return sum(runner.bytes_per_block(layer, 1) for layer in range(len(runner.shapes)))


def main(arguments: Sequence[str]) -> int:
    """Print the figure for each number format; returns the exit status."""
    parser = Parser("kv-memory", __doc__)
    parser.add_argument("model", nargs="+", help="directory or hub id; the configuration is enough")
    options = parser.parse_args(list(arguments))
    for model in options.model:
        for dtype in (torch.float32, torch.bfloat16):
            try:
                size = bytes_per_token(model, dtype)
            except (UnsupportedModel, OSError) as error:
                raise UserError(f"{model}: {error}") from None
            name = str(dtype).removeprefix("torch.")
            print(f"{model} in {name}: {size:,} bytes per token, {size * 1000 / 2**20:,.1f} MiB per 1,000 tokens")
    return 0
