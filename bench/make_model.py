"""Write a model of a given shape with random weights: timing needs no training.

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
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="shape of the model (%(default)s)")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the weights (%(default)s)")
    options = parser.parse_args(list(arguments))
    from orcastream.bench.random_model import make_model  # it loads torch, for which --help need not wait

    console = Console(stderr=True, highlight=False)
    with console.status(f"Writing {options.shape} to {options.directory} ..."):
        parameters = make_model(SHAPES[options.shape], options.directory, options.seed)
    print(f"{options.directory}: {parameters:,} parameters in bfloat16, shape {options.shape}, seed {options.seed}")
    return 0


def _seed(text: str) -> int:
    """argparse type: what torch accepts."""
    return checked(text, int, lambda seed: -(2**63) <= seed < 2**64, "a whole number of 64 bits")
