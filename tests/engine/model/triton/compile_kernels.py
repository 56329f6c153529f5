"""Compiles the kernels of a decoder for a GPU that need not be present, and prints their resource usage.

`python -m tests.engine.model.triton.compile_kernels bf16,fp32` takes formats. It prints one JSON object per kernel.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton

from orcastream.engine.attention.triton.formats import FORMATS
from orcastream.engine.model.triton.gated import gated_kernel
from orcastream.engine.model.triton.norm import norm_kernel, warps_of
from orcastream.engine.model.triton.rotary import rotate_kernel
from tests.engine.attention.compile_kernels import NAMES, compiled

WIDTHS = (1024, 3584, 8192)


def kernels(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield the usage of each kernel in one format."""
    own, common = "*" + NAMES[dtype], {"FORMAT": FORMATS[dtype]}
    for width in WIDTHS:
        block = triton.next_power_of_2(width)
        pointers = {"hidden": own, "change": own, "normed": own, "factors": "*fp32", "epsilon": "fp32"}
        constants = {**common, "WIDTH": width, "BLOCK": block, "CHANGED": True}
        usage = compiled(norm_kernel, pointers, constants, num_warps=warps_of(block))
        yield {"kernel": "norm", "width": width, **usage}
    for half, rest in ((64, 0), (32, 64)):
        pointers = {"rows": own, "positions": "*i64", "angles": "*fp32", "head_norms": "*fp32", "epsilon": "fp32"}
        constants = {
            **common,
            "QUERIES": 32,
            "ROTATED": 40,
            "ALL": 48,
            "SIZE": 128,
            "HALF": half,
            "HEADS": 16,
            "BLOCK": half,
            "REST": rest,
            "NORMED": True,
        }
        yield {"kernel": "rotate", "half": half, **compiled(rotate_kernel, pointers, constants, num_warps=4)}
    constants = {**common, "SIZE": 12288, "BLOCK": 1024, "ACTIVATION": 1}
    yield {"kernel": "gated", **compiled(gated_kernel, {"gate_up": own, "output": own}, constants, num_warps=4)}


if __name__ == "__main__":
    formats = {name: dtype for dtype, name in NAMES.items()}
    for name in sys.argv[1].split(","):
        for found in kernels(formats[name]):
            print(json.dumps({"dtype": name, **found}), flush=True)
