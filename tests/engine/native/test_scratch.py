"""Scratch memory of the compiled operators."""

import signal
import subprocess
from pathlib import Path

from tests.engine.native.programs import compiled, needs_compiler

PROGRAM = """
#include "team.h"

int main() { return *orca::Scratch().get<char>(int64_t{1} << 60); }
"""


@needs_compiler
def test_a_process_that_ends_for_lack_of_memory_says_so(tmp_path: Path) -> None:
    source = tmp_path / "main.cpp"
    source.write_text(PROGRAM, encoding="utf-8")
    ended = subprocess.run([compiled(source)], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGABRT
    assert ended.stderr == f"orcastream: the CPU operators get no {2**60} bytes of memory\n"
