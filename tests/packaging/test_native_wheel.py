"""The wheel contains the compiled operators for a platform, or none if so configured."""

import platform
import subprocess
import zipfile
from pathlib import Path

import pytest

from orcastream.engine.native.build import SOURCES
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, supported
from tests.packaging.conftest import COMPILER, build_wheel, copy_of_the_sources
from tests.packaging.environment import closure, create, requirements_of

pytestmark = pytest.mark.server
"""None starts one, but building takes as long."""
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
IN_WHEEL = "orcastream/engine/native/built/"


@needs_compiler
def test_the_wheel_is_for_one_platform_and_any_python(wheel: Path) -> None:
    assert wheel.name == f"orcastream-0.1.0-py3-none-linux_{platform.machine()}.whl"
    carried = zipfile.ZipFile(wheel).namelist()
    libraries = {f"{IN_WHEEL}liborcastream_{name}.so" for name in INSTRUCTION_SETS}
    assert {name for name in carried if name.startswith(IN_WHEEL)} == libraries
    assert {name for name in carried if name.startswith("orcastream/engine/native/src/")} == {
        f"orcastream/engine/native/src/{path.name}" for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h")
    }


@needs_compiler
@pytest.mark.skipif(not supported(), reason="needs a processor that the operators are compiled for")
def test_an_installed_wheel_loads_its_operators(wheel: Path, tmp_path: Path) -> None:
    binaries = create(tmp_path / "environment", wheel, closure(requirements_of(wheel), {"worker"}))
    program = (
        "from orcastream.engine.native.library import instruction_set, library; print(instruction_set())\n"
        "from orcastream.engine.native.instruction_sets import supported\n"
        "print(next(name for name in supported() if not library(name).orca_outpaced()))"
    )
    command = [str(binaries / "python"), "-W", "error", "-c", program]
    told = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    served, fastest = told.stdout.split()
    assert served == fastest


def test_a_build_without_a_compiler_says_what_to_do(tmp_path: Path) -> None:
    sources = copy_of_the_sources(tmp_path)
    failed = build_wheel(sources, CXX="no-such-compiler")
    assert failed.returncode != 0
    told = failed.stdout + failed.stderr
    assert "a C++17 compiler with OpenMP (no-such-compiler: No such file or directory)" in told
    assert "ORCASTREAM_NATIVE=0" in told
    wrong = build_wheel(sources, ORCASTREAM_NATIVE="no")
    assert "ORCASTREAM_NATIVE: got 'no', allowed: 0, 1" in wrong.stdout + wrong.stderr
    assert build_wheel(sources, CXX="no-such-compiler", ORCASTREAM_NATIVE="0").returncode == 0
    (pure,) = (sources / "dist").glob("*.whl")
    assert pure.name == "orcastream-0.1.0-py3-none-any.whl"
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.startswith(IN_WHEEL)]
