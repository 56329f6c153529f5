"""Stages of the compiled operators, whose threads take over from each other."""

import shutil
import subprocess
from pathlib import Path

from tests.engine.native.programs import compiled, needs_compiler

SOURCE = Path(__file__).with_name("stages.cpp")


@needs_compiler
def test_threads_take_over_from_each_other(tmp_path: Path) -> None:
    """Threads that are late, that hold a piece for long, or sleep at random; what is wrong is printed."""
    program = compiled(Path(shutil.copy(SOURCE, tmp_path)), "-O1", "-fopenmp")
    ended = subprocess.run([program], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("", 0)
