"""Loading the compiled operators, and the reason if they cannot be loaded."""

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orcastream.engine.native import build as build_module
from orcastream.engine.native import instruction_sets
from orcastream.engine.native import library as library_module
from orcastream.engine.native.build import build, fingerprint, library_path
from orcastream.engine.native.instruction_sets import supported
from orcastream.engine.native.library import LibraryUnavailable, instruction_set, library, why_unavailable

needs_operators = pytest.mark.skipif(
    shutil.which(shlex.split(os.environ.get("CXX") or "c++")[0]) is None or not supported(),
    reason="needs a C++ compiler, and a processor that the operators are compiled for",
)


MACROS = {
    "amx": "__AMX_TILE__",
    "avx512_bf16": "__AVX512BF16__",
    "avx512_vnni": "__AVX512VNNI__",
    "avx512": "__AVX512F__",
}
"""What a compiler defines for an instruction set, and not for those behind it."""
SAYS = 'extern "C" int orca_outpaced() { return %d; }'


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder searched for libraries, built from one short source; it contains no library yet."""
    sources, folder = tmp_path / "src", tmp_path / "built"
    sources.mkdir()
    for name in ("machine.cpp", "amx.h"):
        shutil.copy(build_module.SOURCES / name, sources)
    for module in (build_module, library_module):
        monkeypatch.setattr(module, "SOURCES", sources)
    monkeypatch.setattr(library_module, "library_path", lambda name: library_path(name, folder))
    forget()
    yield folder
    forget()


def outpaced(condition: str) -> None:
    """Make the library report itself as slower if the preprocessor finds that `condition` holds."""
    path = build_module.SOURCES / "machine.cpp"
    said = path.read_text().replace("orca_outpaced", "measured_outpaced")
    path.write_text(f"{said}\n#if {condition}\n{SAYS % 1}\n#else\n{SAYS % 0}\n#endif\n")


def forget() -> None:
    library.cache_clear()
    library_module._best.cache_clear()
    why_unavailable.cache_clear()


@needs_operators
def test_the_best_that_was_built_is_loaded(built: Path) -> None:
    build(built, built / "objects")
    assert why_unavailable() is None
    assert instruction_set() == next(name for name in supported() if not library(name).orca_outpaced())
    assert library().orca_fingerprint().decode() == fingerprint()
    assert library(supported()[-1]).orca_fingerprint().decode() == fingerprint()


@needs_operators
@pytest.mark.skipif(len(supported()) < 2, reason="needs a processor with a choice")
def test_the_next_best_is_used_if_the_best_was_not_built(built: Path) -> None:
    outpaced("0")
    build(built, built / "objects")
    library_path(supported()[0], built).unlink()
    assert instruction_set() == supported()[1]


@needs_operators
@pytest.mark.skipif(len(supported()) < 2, reason="needs a processor with a choice")
def test_the_next_best_is_used_if_the_best_is_slower(built: Path) -> None:
    outpaced(f"defined({MACROS[supported()[0]]})")
    build(built, built / "objects")
    assert instruction_set() == supported()[1]


@needs_operators
def test_a_slower_one_is_used_if_there_is_no_other(built: Path) -> None:
    outpaced("1")
    build(built, built / "objects")
    assert instruction_set() == supported()[0]


@needs_operators
@pytest.mark.skipif("avx512_bf16" not in supported(), reason="needs a processor that multiplies pairs of bfloat16")
def test_the_choice_is_stable_for_a_processor(built: Path) -> None:
    build(built, built / "objects")
    found = library("avx512_bf16")
    assert len({found.orca_outpaced() for _ in range(20)}) == 1


@pytest.mark.skipif(not supported(), reason="needs a processor that the operators are compiled for")
def test_missing_and_damaged_libraries_are_distinguished(built: Path) -> None:
    assert why_unavailable() == "they were not built: python -m orcastream.engine.native.build"
    with pytest.raises(LibraryUnavailable, match="they were not built"):
        instruction_set()
    forget()
    built.mkdir()
    library_path(supported()[0], built).write_bytes(b"no library")
    assert str(why_unavailable()).startswith("they cannot be loaded: ")


@needs_operators
def test_operators_of_other_sources_are_refused(built: Path) -> None:
    build(built, built / "objects")
    (build_module.SOURCES / "newer.h").write_text("// newer\n")
    assert why_unavailable() == "they were built from other sources: python -m orcastream.engine.native.build"


def test_an_unsupported_processor(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "_CPU_INFO", tmp_path / "missing")
    monkeypatch.setattr(instruction_sets, "INSTRUCTION_SETS", {"avx2": ("avx2",)})
    assert why_unavailable() == "they are compiled for x86-64 processors with AVX2"
