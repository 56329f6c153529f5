"""Write a model of a given shape, or of any config.json, with random weights: timing needs no training.

The weights are bfloat16; the tokenizer, with one made-up word per token, lets a gateway serve the model.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orcastream.bench.flags import Parser, checked
from orcastream.bench.shapes import SHAPES


def main(arguments: Sequence[str]) -> int:
    """Write the model that the command line describes."""
    parser = Parser("make-model", __doc__)
    parser.add_argument("directory", type=Path, help="target; must be empty or not exist yet")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="shape of the model (%(default)s)")
    kind.add_argument("--config", type=Path, help="its config.json instead, of any decoder that transformers knows")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the weights (%(default)s)")
    options = parser.parse_args(list(arguments))
    # It loads torch, for which --help need not wait.
    from orcastream.bench.random_model import make_model, model_config, read_config

    kind_of = options.shape if options.config is None else str(options.config)
    console = Console(stderr=True, highlight=False)
    with console.status(f"Writing {kind_of} to {options.directory} ..."):
        config = model_config(SHAPES[options.shape]) if options.config is None else read_config(options.config)
        parameters = make_model(config, options.directory, options.seed)
    print(f"{options.directory}: {parameters:,} parameters in bfloat16, shape {kind_of}, seed {options.seed}")
    return 0


def _seed(text: str) -> int:
    """argparse type: what torch accepts."""
    return checked(text, int, lambda seed: -(2**63) <= seed < 2**64, "a whole number of 64 bits")
