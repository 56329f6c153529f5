"""Print the KV cache that a model needs per token, and the limit per sequence if it has windows.

The model is built from its configuration without weights, and the engine's own probe finds every attention layer, so
grouped heads, keys and values of different sizes, and sliding windows are counted as the engine will allocate them.
MODEL is a directory, a hub id, or `type:NAME` for transformers' default configuration of that model type.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orcastream.bench.flags import Parser
from orcastream.cli.errors import UserError
from orcastream.engine.errors import UnsupportedModel

if TYPE_CHECKING:
    from orcastream.engine.model.runner import ModelRunner

FORMATS = ("float32", "bfloat16", "int8", "fp8")
LENGTHS = (1024, 8192, 32768, 131072)


def main(arguments: Sequence[str]) -> int:
    """Print the figures for each number format and, with windows, each length; return the exit status."""
    parser = Parser("kv-memory", __doc__)
    parser.add_argument("model", nargs="+", help="directory, hub id or type:NAME; the configuration is enough")
    options = parser.parse_args(list(arguments))
    from orcastream.bench.cache_need import bytes_per_token, make_runner  # loads torch, for which --help need not wait

    for model in options.model:
        for name in FORMATS:
            try:
                runner = make_runner(model, name)
            except (UnsupportedModel, OSError, ValueError) as error:
                raise UserError(str(error)) from None
            size = bytes_per_token(runner)
            print(f"{model} in {name}: {size:,} bytes per token, {size * 1000 / 2**20:,.1f} MiB per 1,000 tokens")
            if name == "bfloat16" and any(shape.window is not None for shape in runner.shapes):
                _print_windows(model, runner)
    return 0


def _print_windows(model: str, runner: "ModelRunner") -> None:
    from orcastream.bench.cache_need import CHUNK, bytes_per_sequence

    for length in LENGTHS:
        held, without = bytes_per_sequence(runner, length), bytes_per_sequence(runner, length, windows=False)
        print(
            f"{model}: a sequence of {length:,} tokens holds {held / 2**20:,.1f} MiB in chunks of {CHUNK}; "
            f"{without / 2**20:,.1f} MiB if windows freed nothing"
        )
