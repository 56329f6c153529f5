"""What the emulated device needs, and this machine or its build of torch lacks."""

import shutil
from importlib.util import find_spec

import torch

from orcastream.engine.native.compiler import Compiler


def lacking() -> str:
    """Return why no device can be emulated here; empty if one can."""
    if torch.backends.cuda.is_built():
        return "the emulated device needs a build of torch without CUDA"
    if find_spec("triton") is None:
        return "the emulated device needs Triton"
    if shutil.which(Compiler.find().command[0]) is None:
        return "the emulated device needs a C++ compiler"
    return ""
