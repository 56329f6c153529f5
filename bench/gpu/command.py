"""Check every kernel on fresh random data, then measure: kernels, iterations, workloads.

Needs a CUDA GPU, torch, transformers and this package. Kernels are compared with the reference in float32; then come
decode and prefill of one layer, random draws, whole iterations of models with random weights, and workloads compared
with transformers' continuous batching in the same run, all relative to the card's measured limits.

  orcastream bench gpu --json figures.json
  orcastream bench gpu --only check,kernels
  orcastream bench gpu --only workloads --shapes qwen3-8b --workloads heavy_tail --repeats 1
  orcastream bench gpu --interpret          (the checks on tiny sizes in Triton's interpreter, without a GPU)
"""

import argparse
import os
import random
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orcastream.bench.figures.machine import command_line, machine, versions
from orcastream.bench.flags import Parser, at_least, check_outputs, names
from orcastream.cli.errors import UserError

if TYPE_CHECKING:  # imported only after deciding whether Triton interprets
    import torch

STAGES = ("check", "kernels", "iterations", "workloads")
SHAPES = ("qwen3-0.6b", "qwen3-8b", "qwen3-tiny")
WORKLOADS_COMPARED = ("equal_size", "short_long_mix", "heavy_tail", "orca_trace")
"""Workloads without requests that follow others, which transformers cannot express; all requests arrive at once."""

_WRONG = 1


def main(arguments: Sequence[str]) -> int:
    """Check and measure; return 1 if a kernel is wrong or a measurement failed, after completing all others."""
    options = _parse(arguments)
    stages = ["check"] if options.interpret else names(options.only) or STAGES
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise UserError(f"--only: got {unknown[0]!r}, allowed: {', '.join(STAGES)}")
    shapes = names(options.shapes)
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        raise UserError(f"--shapes: got {unknown[0]!r}, allowed: {', '.join(SHAPES)}")
    workloads = names(options.workloads) or WORKLOADS_COMPARED
    if unknown := [workload for workload in workloads if workload not in WORKLOADS_COMPARED]:
        raise UserError(f"--workloads: got {unknown[0]!r}, allowed: {', '.join(WORKLOADS_COMPARED)}")
    check_outputs(options)
    if options.interpret:
        _interpret()
    return _run(options, stages, shapes, workloads, command_line("gpu", arguments))


def _run(
    options: argparse.Namespace, stages: Sequence[str], shapes: Sequence[str], workloads: Sequence[str], command: str
) -> int:
    import torch

    from orcastream.bench.gpu.report import Report
    from orcastream.bench.gpu.stages import Bench
    from orcastream.engine.attention import choose_backend

    device = torch.device("cpu" if options.interpret else "cuda")
    if not options.interpret and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA GPU on this machine (--interpret checks the kernels without one)")
    try:
        backend = choose_backend(options.backend, device, torch.bfloat16)
    except ValueError as error:
        raise UserError(str(error)) from None
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    about = {"command": command, "machine": machine(), **_card(device), "versions": versions(), "seed": seed}
    report = Report(about, options.json)
    bench = Bench(backend, device, seed, shapes, options.repeats, report, workloads=workloads, tiny=options.interpret)
    try:
        right = bench.run(stages)
    finally:
        report.show()
    return 0 if right else _WRONG


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("gpu", __doc__)
    parser.add_argument("--interpret", action="store_true", help="check tiny sizes in Triton's interpreter, on a CPU")
    parser.add_argument("--backend", default="triton", help="attention backend to check and measure (%(default)s)")
    parser.add_argument("--only", metavar="STAGE[,...]", help=f"stages, from {', '.join(STAGES)} (all)")
    parser.add_argument("--shapes", default="qwen3-0.6b,qwen3-8b", help="model shapes, see make-model (%(default)s)")
    parser.add_argument("--workloads", metavar="NAME[,...]", help=f"of {', '.join(WORKLOADS_COMPARED)} (all)")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs of each workload (%(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the random data (default: random)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, as they are measured")
    return parser.parse_args(list(arguments))


def _interpret() -> None:
    """Make Triton interpret, which it decides at import. Raises UserError if it has already decided otherwise."""
    if find_spec("triton") is None:
        raise UserError("--interpret: the package triton is not installed")
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("--interpret: this process has loaded Triton already, without its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"


def _card(device: "torch.device") -> dict[str, Any]:
    import torch

    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    }
