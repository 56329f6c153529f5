"""Measure the speed of linear layers: `python -m orcastream.bench.linears`.

Compares ours, plain torch, and oneDNN with pre-packed weights, per shape and number of rows. Each alternates between
several copies of the weight, more than the caches hold, as a model goes through its layers. Every system computes each
case in several interleaved rounds; the figure is the median.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from orcastream.engine.native.instruction_sets import supported
from orcastream.engine.native.linear import PackedLinear

SHAPES = ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024))
ROWS = (1, 4, 16, 64, 128, 512, 2048)
WEIGHTS_BYTES = 256 << 20
"""Total size of all copies of one weight."""

Compute = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """x `[m, k]` times a weight `[n, k]`."""

    m: int
    n: int
    k: int


def systems(weight: torch.Tensor, m: int, instruction_sets: Sequence[str | None]) -> dict[str, Compute]:
    """Return the implementations of a linear layer, by name."""
    found: dict[str, Compute] = {}
    for name in instruction_sets:
        ours = found[f"ours {name or 'best'}"] = PackedLinear.pack(weight, instruction_set=name)
        compact = ours.compact()
        if compact is not None:
            found[f"compact {name or 'best'}"] = compact
    found["torch"] = lambda x: torch.nn.functional.linear(x, weight)
    if weight.dtype == torch.bfloat16:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, m)
        found["oneDNN packed"] = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return found


def measure(case: Case, dtype: torch.dtype, instruction_sets: Sequence[str | None], seconds: float) -> dict[str, float]:
    """Return the median seconds of one product by each system."""
    copies = max(1, min(28, WEIGHTS_BYTES // (case.n * case.k * dtype.itemsize)))
    rows = torch.randn(case.m, case.k).to(dtype)
    sets = [
        systems(torch.randn(case.n, case.k).to(dtype) * case.k**-0.5, case.m, instruction_sets) for _ in range(copies)
    ]
    times: dict[str, list[float]] = {name: [] for name in sets[0]}
    deadline = time.perf_counter() + seconds * len(times)
    while time.perf_counter() < deadline or len(times["torch"]) < 3:
        for name, found in times.items():
            began = time.perf_counter()
            for each in sets:
                each[name](rows)
            found.append((time.perf_counter() - began) / copies)
    return {name: statistics.median(found) for name, found in times.items()}


def read_bandwidth() -> float:
    """Return the GB/s of a plain read of memory by all threads."""
    memory = torch.ones(128 << 20, dtype=torch.float32)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        memory.sum()
        times.append(time.perf_counter() - began)
    return memory.nbytes / min(times) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.linears", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows")
    parser.add_argument("--shapes", nargs="+", help="NxK, columns by depth", default=[f"{n}x{k}" for n, k in SHAPES])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--instruction-sets", nargs="+", choices=supported(), default=[None], help="(the fastest)")
    parser.add_argument("--seconds", type=float, default=0.3, help="per case and system (default: 0.3)")
    options = parser.parse_args(arguments)
    dtype: torch.dtype = getattr(torch, options.dtype)
    print(f"{torch.get_num_threads()} threads, {options.dtype}, plain read {read_bandwidth():.1f} GB/s")
    print(f"{'N':>7} {'K':>5} {'m':>5}  system             {'ms':>8} {'GB/s':>6} {'GFLOP/s':>8}")
    with torch.inference_mode():
        for n, k in (map(int, shape.split("x")) for shape in options.shapes):
            for m in options.rows:
                case = Case(m, n, k)
                for name, took in measure(case, dtype, options.instruction_sets, options.seconds).items():
                    read, flops = n * k * dtype.itemsize, 2 * m * n * k
                    figures = f"{took * 1e3:8.3f} {read / took / 1e9:6.1f} {flops / took / 1e9:8.0f}"
                    print(f"{n:>7} {k:>5} {m:>5}  {name:<18} {figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
