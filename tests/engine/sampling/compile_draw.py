"""Compiles the kernel that draws tokens for a GPU that need not be there, and prints what it takes; run as a script.

`python -m tests.engine.sampling.compile_draw` prints one JSON object per type of the logits, as
`tests.engine.attention.compile_kernels` does.
"""

import json

import torch

from orcastream.engine.sampling.race import ATTEMPTS
from orcastream.engine.sampling.triton.draw import STEP, WARPS, draw_kernel
from orcastream.engine.sampling.weights import TILE
from tests.engine.attention.compile_kernels import NAMES, compiled

if __name__ == "__main__":
    for dtype in (torch.bfloat16, torch.float32):
        pointers = {"logits": "*" + NAMES[dtype], "places": "*i64", "shares": "*fp64", "found": "*fp64"}
        constants = {"EAGER": False, "ATTEMPTS": ATTEMPTS, "TILE": TILE, "STEP": STEP}
        taken = compiled(draw_kernel, pointers, constants, num_warps=WARPS)
        print(json.dumps({"kernel": "draw", "dtype": NAMES[dtype], **taken}), flush=True)
