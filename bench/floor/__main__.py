"""Compare an iteration with the machine's lower bound: `python -m orcastream.bench.floor --model DIR`.

For each batch: the median decode iteration of the engine, all requests at the same context, and its floor, the sum of

- the fastest available linear layers, for the model's shapes (queries, keys and values merged, as well as gate and up)
  at that number of rows, times the number of layers, each with a weight that is in no cache;
- the head for the sampled rows;
- keys and values of all contexts, at the rate at which this machine copies memory.

The same for prompts, with one iteration that computes a whole prompt. The remainder is split into the host's work,
attention (measured alone, beyond the copy of its cache), and everything else.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

import torch

from orcastream.bench.flags import at_least
from orcastream.bench.floor.iterations import Iterations
from orcastream.bench.floor.operators import attention_ms, copy_rate, linear_ms
from orcastream.bench.floor.parts import HEADINGS, Load, Parts
from orcastream.bench.floor.shape import Shape
from orcastream.engine import EngineConfig, OrcaEngine


def examine(engine: OrcaEngine, shape: Shape, load: Load, repeats: int) -> Parts:
    """Measure one load and its floor."""
    dtype = engine.model.dtype
    rows = load.batch * load.length
    iterations = Iterations(engine, load, repeats)
    iterations.run()
    linears = sum(linear_ms(rows, columns, depth, dtype) for columns, depth in shape.linears()) * shape.layers
    head = linear_ms(load.batch, shape.vocabulary, shape.hidden, dtype)
    cache = shape.kv_bytes(load.batch * (load.context + load.length), dtype) / copy_rate() * 1e3
    attention = attention_ms(shape, load, dtype)
    iterations.run()
    return Parts(
        statistics.median(iterations.total), linears, head, cache, attention, statistics.median(iterations.host)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.floor", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--model", required=True, help="a directory")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--batches", type=at_least(1), nargs="*", default=(1, 4, 16, 64))
    parser.add_argument("--context", type=at_least(1), default=192, help="tokens of context of decodes (default: 192)")
    parser.add_argument("--prefills", type=at_least(2), nargs="*", default=(128, 512, 2048))
    parser.add_argument("--repeats", type=at_least(1), default=12, help="iterations, twice (default: 12)")
    options = parser.parse_args(arguments)
    loads = [Load(batch, 1, options.context) for batch in options.batches]
    loads += [Load(1, length, 0) for length in options.prefills]
    if not loads:
        parser.error("--batches, --prefills: got none, allowed: at least one of either")
    engine = OrcaEngine.load(
        EngineConfig(
            model=options.model,
            dtype=options.dtype,
            max_batch_size=max(load.batch for load in loads),
            # All prompts in one iteration, so that all requests decode at the same context.
            max_num_batched_tokens=max(load.batch * max(load.length, load.context) for load in loads),
            prefix_cache=False,
        )
    )
    if getattr(engine.model.config, "num_experts_per_tok", None):
        parser.error(
            f"--model: got {options.model!r}, a mixture of experts, allowed: a model whose weights all tokens use"
        )
    engine.settle()
    shape = Shape.of(engine.model.config)
    print(f"{torch.get_num_threads()} threads, {options.dtype}, copy {copy_rate() / 1e9:.1f} GB/s; milliseconds")
    print(f"{'':<32} " + " ".join(f"{each:>9}" for each in HEADINGS) + "   ratio")
    with torch.inference_mode():
        for load in loads:
            print(examine(engine, shape, load, options.repeats).row(load), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
