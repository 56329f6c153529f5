"""`make` compiles the operators once, and again when their sources change; the number of test processes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS
from tests.packaging.conftest import COMPILER, ROOT

STAMP = "engine/native/built/.made"
NOTICE = "Compiling the CPU operators ..."


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of a checkout that the rule needs, with a source that compiles quickly, and a ready environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    ignored = shutil.ignore_patterns("built", "src", "__pycache__")
    shutil.copytree(ROOT / "engine/native", tmp_path / "engine/native", ignore=ignored)
    shutil.copy(ROOT / "engine/__init__.py", tmp_path / "engine")
    (tmp_path / "engine/native/src").mkdir()
    (tmp_path / "orcastream").mkdir()
    shutil.copy(ROOT / "orcastream/__init__.py", tmp_path / "orcastream")
    (tmp_path / "orcastream/engine").symlink_to("../engine")
    for name in ("machine.cpp", "amx.h"):
        shutil.copy(ROOT / "engine/native/src" / name, tmp_path / "engine/native/src")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/.ready").touch()
    return tmp_path


def make(checkout: Path, **environment: str) -> str:
    """Return the output of `make` while it updates the operators."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHONPATH"))}
    command = ["make", "--no-print-directory", STAMP]
    return subprocess.run(
        command, cwd=checkout, env={**known, **environment}, check=True, text=True, stderr=subprocess.STDOUT, stdout=-1
    ).stdout


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_make_compiles_once_and_again_when_a_source_changes(checkout: Path) -> None:
    every = f"{NOTICE}\ncompiled operators: {', '.join(INSTRUCTION_SETS)}\n"
    assert make(checkout) == every
    assert NOTICE not in make(checkout)
    built = {path: path.stat().st_mtime_ns for path in (checkout / "engine/native/built").glob("*.so")}
    source = checkout / "engine/native/src/more.cpp"
    source.write_text('extern "C" int more() { return 1; }\n', encoding="utf-8")
    stamp = checkout / STAMP
    os.utime(stamp, ns=(0, 0))
    assert make(checkout) == every
    assert all(path.stat().st_mtime_ns > before for path, before in built.items())
    assert len(built) == len(INSTRUCTION_SETS)


def test_make_continues_without_a_compiler_and_retries_later(checkout: Path) -> None:
    for _ in range(2):
        _, told = make(checkout, CXX="no-such-compiler").splitlines()
        assert told == (
            "compiled operators: none; torch's slower ones are used (no-such-compiler: No such file or directory)"
        )


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_make_stops_at_a_faulty_source(checkout: Path) -> None:
    (checkout / "engine/native/src/wrong.cpp").write_text("int wrong() { return nothing; }\n", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        make(checkout)
    assert "'nothing' was not declared" in failed.value.stdout.replace("‘", "'").replace("’", "'")


def processes_of_a_test_run(*variables: str) -> list[int]:
    command = ["make", "--dry-run", "TEST_CORES=2", *variables, "test"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [int(count) for count in re.findall(r"--numprocesses (\d+)", told)]


@pytest.mark.parametrize(("wanted", "halves"), [(0, [0, 0]), (1, [1, 1]), (100, [2, 100])])
def test_compute_tests_have_a_core_for_each_process(wanted: int, halves: list[int]) -> None:
    assert processes_of_a_test_run(f"TEST_WORKERS={wanted}", "AGAIN=") == halves


def test_failed_tests_rerun_alone_on_request() -> None:
    assert processes_of_a_test_run("TEST_WORKERS=4", "AGAIN=1") == [2, 4, 0]
