"""Programs in C++ that include the operators' headers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orcastream.engine.native.build import SOURCES
from orcastream.engine.native.compiler import Compiler

needs_compiler = pytest.mark.skipif(shutil.which(Compiler.find().command[0]) is None, reason="needs a C++ compiler")


def compiled(source: Path, *flags: str) -> Path:
    """Return the program that `source` becomes, in the same folder."""
    program = source.with_suffix("")
    command = (*Compiler.find().command, "-std=c++17", *flags, f"-I{SOURCES}", str(source), "-o", str(program))
    subprocess.run(command, check=True)
    return program
