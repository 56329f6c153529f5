"""The instruction sets that the operators are compiled for."""

import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_VNNI = (*_AVX512, "avx512_vnni")
_AVX512_BF16 = (*_AVX512_VNNI, "avx512_bf16")

_X86: dict[str, tuple[str, ...]] = {
    "amx": (*_AVX512_BF16, "amx_tile", "amx_bf16", "amx_int8"),
    "avx512_bf16": _AVX512_BF16,
    "avx512_vnni": _AVX512_VNNI,
    "avx512": _AVX512,
    "avx2": _AVX2,
}

INSTRUCTION_SETS: dict[str, tuple[str, ...]] = _X86 if platform.machine() == "x86_64" else {"generic": ()}
"""Processor flags that each instruction set needs, best first. Other than x86-64 uses the compiler's default."""

_COMPILER_NAMES = {flag: flag.replace("_", "-") for flag in ("amx_tile", "amx_bf16", "amx_int8")} | {
    "avx512_bf16": "avx512bf16",
    "avx512_vnni": "avx512vnni",
}


def compiler_flags(name: str) -> list[str]:
    """Return the flags with which a compiler (GCC or Clang) uses that instruction set."""
    return [f"-m{_COMPILER_NAMES.get(flag, flag)}" for flag in INSTRUCTION_SETS[name]]


def supported() -> list[str]:
    """Return the instruction sets of this machine's processor, best first."""
    flags = _processor_flags()
    return [name for name, needed in INSTRUCTION_SETS.items() if flags.issuperset(needed)]


def computes_bfloat16() -> bool:
    """Whether this machine's processor has instructions that multiply bfloat16 numbers."""
    return any("avx512_bf16" in INSTRUCTION_SETS[name] for name in supported())


def _processor_flags() -> frozenset[str]:
    if not _CPU_INFO.exists():
        return frozenset()
    lines = (line.split(":", 1) for line in _CPU_INFO.read_text().splitlines() if line.startswith("flags"))
    return frozenset(next((words.split() for _, words in lines), ()))
