"""Check every attention kernel on fresh random data, then measure: kernels, iterations, workloads.

Needs a CUDA GPU, torch, transformers and this package. Kernels are compared with the reference in float32; then decode
and prefill of one layer, whole iterations of models with random weights, and workloads beside transformers' continuous
batching in the same run, all over what the card was measured to do at most.

  orcastream bench gpu --json figures.json
  orcastream bench gpu --only check,kernels
  orcastream bench gpu --interpret          (the checks on tiny sizes in Triton's interpreter, without a GPU)
"""

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bench.figures.machine import command_line, machine, versions
from bench.flags import Parser, at_least, names
from bench.gpu.report import Report
from bench.gpu.stages import STAGES, Bench
from bench.make_model import SHAPES
from cli.errors import UserError
from engine.attention import choose_backend

_WRONG = 1


def main(arguments: Sequence[str]) -> int:
    """Check and measure; 1 where a kernel is wrong, after which nothing is measured."""
    options = _parse(arguments)
    stages = ["check"] if options.interpret else list(names(options.only)) or list(STAGES)
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise UserError(f"--only: got {unknown[0]!r}, allowed: {', '.join(STAGES)}")
    shapes = list(names(options.shapes))
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        raise UserError(f"--shapes: got {unknown[0]!r}, allowed: {', '.join(SHAPES)}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise UserError(f"--json: got {str(options.json)!r}, allowed: a file in a directory that exists")
    with ExitStack() as stack:
        if options.interpret:
            _interpret(stack)
        device = torch.device("cpu" if options.interpret else "cuda")
        if not options.interpret and not torch.cuda.is_available():
            raise UserError("torch finds no CUDA GPU on this machine (--interpret checks the kernels without one)")
        try:
            backend = choose_backend(options.backend, device)
        except ValueError as error:
            raise UserError(str(error)) from None
        seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
        bench = Bench(backend, device, seed, shapes, options.repeats, tiny=options.interpret)
        report = Report(_about(arguments, device, seed))
        right = bench.run(stages, report)
        report.show()
        if options.json is not None:
            options.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return 0 if right else _WRONG


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("gpu", __doc__)
    parser.add_argument("--interpret", action="store_true", help="check tiny sizes in Triton's interpreter, on a CPU")
    parser.add_argument("--backend", default="triton", help="attention backend to check and measure (%(default)s)")
    parser.add_argument("--only", metavar="STAGE[,...]", help=f"of {', '.join(STAGES)} (all)")
    parser.add_argument("--shapes", default="qwen3-0.6b,qwen3-8b", help="models, see make-model (%(default)s)")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs of each workload (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the random data (a new one each time)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(list(arguments))


def _interpret(stack: ExitStack) -> None:
    """Kernels that are imported from here on are interpreted; UserError where that is not possible."""
    try:
        import triton
    except ModuleNotFoundError:
        raise UserError("--interpret: the package triton is not installed") from None
    stack.enter_context(triton.knobs.runtime.scope())
    triton.knobs.runtime.interpret = True
    from engine.attention.triton import formats

    if not formats.INTERPRETED:
        raise UserError("--interpret: this process has the compiled kernels already")


def _about(arguments: Sequence[str], device: torch.device, seed: int) -> dict[str, Any]:
    about = {"command": command_line("gpu", arguments), "machine": machine(), "versions": versions(), "seed": seed}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about["gpu"] = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return about
