"""Stages of the compiled operators, whose threads take over from each other."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orcastream.engine.native.build import SOURCES
from orcastream.engine.native.compiler import Compiler

PROGRAM = Path(__file__).with_name("stages.cpp")


@pytest.mark.skipif(shutil.which(Compiler.find().command[0]) is None, reason="needs a C++ compiler")
def test_threads_take_over_from_each_other(tmp_path: Path) -> None:
    """Threads that are late, that hold a piece for long, or sleep at random; what is wrong is printed."""
    program = tmp_path / "stages"
    compiling = (*Compiler.find().command, "-std=c++17", "-O1", "-fopenmp", f"-I{SOURCES}", str(PROGRAM), "-o")
    subprocess.run((*compiling, str(program)), check=True)
    ended = subprocess.run([program], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("", 0)
