"""Building the operators: only outdated files, and only for instruction sets that the compiler supports."""

import ctypes
import os
import shlex
import shutil
from pathlib import Path

import pytest

from orcastream.engine.native import build as build_module
from orcastream.engine.native.build import NO_COMPILER, build, fingerprint, library_path, main
from orcastream.engine.native.compiler import BuildError, NoCompiler
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, supported

needs_compiler = pytest.mark.skipif(
    shutil.which(shlex.split(os.environ.get("CXX") or "c++")[0]) is None, reason="needs a C++ compiler"
)


def replace_sources(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write a few short sources, and let them be built in place of the operators."""
    folder.mkdir()
    for name in ("machine.cpp", "amx.h"):
        shutil.copy(build_module.SOURCES / name, folder)
    (folder / "half.h").write_text("inline float half(float x) { return x / 2; }\n")
    (folder / "quarter.h").write_text('#pragma once\n#include "half.h"\n')
    (folder / "a.cpp").write_text('#include "quarter.h"\nextern "C" float a(float x) { return half(half(x)); }\n')
    (folder / "b.cpp").write_text('extern "C" int b() { return 2; }\n')
    patch.setattr(build_module, "SOURCES", folder)
    return folder


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The short sources."""
    return replace_sources(tmp_path / "src", monkeypatch)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The folder for libraries, with nothing built; object files go to its subfolder `objects`."""
    return tmp_path / "built"


@pytest.fixture(scope="module")
def first_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a build of the short sources, made once."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        replace_sources(folder / "src", patch)
        rebuild(folder / "built")
    return folder / "built"


@pytest.fixture
def built(sources: Path, first_build: Path, empty: Path) -> Path:
    """A folder with the libraries and object files of the short sources."""
    return Path(shutil.copytree(first_build, empty))


def rebuild(built: Path) -> list[Path]:
    return build(built, built / "objects")


def objects(built: Path) -> set[str]:
    return {path.name for path in (built / "objects").iterdir()}


def stems(names: set[str]) -> list[str]:
    return sorted(name.rpartition("-")[0] for name in names)


def of_every_set(*sources: str) -> list[str]:
    return sorted(f"{name}-{source}" for name in INSTRUCTION_SETS for source in sources)


@needs_compiler
def test_every_instruction_set_gets_a_library_that_knows_its_sources(sources: Path, empty: Path) -> None:
    built = empty
    assert rebuild(built) == [library_path(name, built) for name in INSTRUCTION_SETS]
    assert stems(objects(built)) == of_every_set("a", "b", "machine")
    for name in supported():
        library = ctypes.CDLL(str(library_path(name, built)))
        library.orca_fingerprint.restype = ctypes.c_char_p
        library.a.argtypes, library.a.restype = [ctypes.c_float], ctypes.c_float
        assert (library.orca_fingerprint().decode(), library.a(10), library.b()) == (fingerprint(), 2.5, 2)


@needs_compiler
def test_nothing_is_done_if_nothing_changed(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert rebuild(built) == [library_path(name, built) for name in INSTRUCTION_SETS]


@needs_compiler
@pytest.mark.parametrize(("changed", "compiled"), [("b.cpp", ["b"]), ("half.h", ["a"]), ("quarter.h", ["a"])])
def test_only_files_that_depend_on_a_change_are_recompiled(
    changed: str, compiled: list[str], sources: Path, built: Path
) -> None:
    before, stamp = objects(built), fingerprint()
    with (sources / changed).open("a") as file:
        file.write("// changed\n")
    rebuild(built)
    assert stems(objects(built) - before) == of_every_set(*compiled, "machine")
    assert len(objects(built)) == len(before), "outdated files are deleted"
    assert fingerprint() != stamp
    assert all(fingerprint().encode() in library_path(name, built).read_bytes() for name in INSTRUCTION_SETS)


@needs_compiler
def test_another_compiler_recompiles_everything(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = objects(built)
    library_path(next(iter(INSTRUCTION_SETS)), built).unlink()
    monkeypatch.setenv("CXX", f"env {os.environ.get('CXX') or 'c++'}")
    rebuild(built)
    assert objects(built).isdisjoint(before)


@needs_compiler
@pytest.mark.skipif("amx" not in INSTRUCTION_SETS, reason="needs more than one instruction set")
def test_unsupported_instruction_sets_are_left_out_by_name(
    sources: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    older = tmp_path / "older"
    refusal = '*-mamx-tile*) echo "error: unrecognized option -mamx-tile" >&2; exit 1'
    older.write_text(f'#!/bin/sh\ncase "$*" in {refusal};; esac\nexec {os.environ.get("CXX") or "c++"} "$@"\n')
    older.chmod(0o755)
    monkeypatch.setenv("CXX", str(older))
    (sources / "b.cpp").write_text('extern "C" int b() { return 3; }\n')
    rest = [library_path(name, built) for name in INSTRUCTION_SETS if name != "amx"]
    assert rebuild(built) == rest
    assert capsys.readouterr().err == "compiled operators: not for amx: error: unrecognized option -mamx-tile\n"
    assert not library_path("amx", built).exists(), "a library of other sources must not be found"


@needs_compiler
def test_a_compiler_without_openmp_is_not_used(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    refusal = '*-fopenmp*) echo "fatal error: omp.h: No such file" >&2; exit 1'
    bare.write_text(f'#!/bin/sh\ncase "$*" in {refusal};; esac\nexec c++ "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("CXX", str(bare))
    with pytest.raises(NoCompiler, match=r"bare: fatal error: omp\.h: No such file"):
        rebuild(empty)


@needs_compiler
def test_a_compile_error_includes_the_compilers_output(
    sources: Path, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sources / "b.cpp").write_text("int b() { return nothing; }\n")
    with pytest.raises(BuildError, match="nothing"):
        rebuild(empty)
    assert not list(empty.rglob("*.tmp"))
    assert main(["--into", str(empty)]) == 1
    assert "b.cpp:1" in capsys.readouterr().err


def test_the_command_says_in_one_line_that_there_is_no_compiler(
    sources: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["--into", str(empty)]) == NO_COMPILER
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("torch's slower ones are used (no-such-compiler: No such file or directory)")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["--into", str(file / "built")]) == 1
    expected = f"compiled operators: none\n[Errno 20] Not a directory: '{file / 'built'}'\n"
    assert capsys.readouterr().err == expected
