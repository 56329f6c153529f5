"""Scratch memory of the compiled operators."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orcastream.engine.native.build import SOURCES
from orcastream.engine.native.compiler import Compiler

PROGRAM = """
#include "team.h"

int main() { return *orca::Scratch().get<char>(int64_t{1} << 60); }
"""


@pytest.mark.skipif(shutil.which(Compiler.find().command[0]) is None, reason="needs a C++ compiler")
def test_a_process_that_ends_for_lack_of_memory_says_so(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    compiling = (*Compiler.find().command, "-std=c++17", f"-I{SOURCES}", "main.cpp", "-o", "main")
    subprocess.run(compiling, cwd=tmp_path, check=True)
    ended = subprocess.run([tmp_path / "main"], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGABRT
    assert ended.stderr == f"orcastream: the CPU operators get no {2**60} bytes of memory\n"
