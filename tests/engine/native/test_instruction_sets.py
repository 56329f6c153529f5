"""The features that a processor reports determine its operators."""

import platform
from pathlib import Path

import pytest

from orcastream.engine.native import instruction_sets
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, compiler_flags, computes_bfloat16, supported

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64")

AVX2 = "fpu sse4_2 avx avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
VNNI = f"{AVX512} avx512_vnni"
BF16 = f"{VNNI} avx512_bf16"
AMX = f"{BF16} amx_tile amx_int8 amx_bf16"


@pytest.mark.parametrize(
    ("flags", "names", "bfloat16"),
    [
        ("fpu sse4_2", [], False),
        (AVX2, ["avx2"], False),
        (AVX512, ["avx512", "avx2"], False),
        (VNNI, ["avx512_vnni", "avx512", "avx2"], False),
        (BF16, ["avx512_bf16", "avx512_vnni", "avx512", "avx2"], True),
        (AMX, ["amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2"], True),
        (AMX.replace("avx512_bf16", ""), ["avx512_vnni", "avx512", "avx2"], False),
    ],
)
def test_the_best_comes_first(
    flags: str, names: list[str], bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\nbugs\t\t: spectre\n\n" * 2)
    monkeypatch.setattr(instruction_sets, "_CPU_INFO", told)
    assert supported() == names
    assert computes_bfloat16() is bfloat16


def test_nothing_is_assumed_about_a_processor_without_information(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "_CPU_INFO", tmp_path / "missing")
    assert supported() == []
    assert not computes_bfloat16()


def test_a_compiler_gets_every_flag_in_its_own_spelling() -> None:
    assert compiler_flags("avx2") == ["-mavx2", "-mfma", "-mf16c"]
    assert {"-mamx-tile", "-mavx512bf16", "-mavx512vnni"} <= set(compiler_flags("amx"))
    assert all(set(compiler_flags("avx2")) <= set(compiler_flags(name)) for name in INSTRUCTION_SETS)
