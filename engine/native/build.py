"""Compile the operators: `python -m engine.native.build`. Needs a C++17 compiler with OpenMP (CXX, else c++)."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from engine.native.instruction_sets import INSTRUCTION_SETS, compiler_flags

HERE = Path(__file__).parent
SOURCES = HERE / "src"
BUILT = HERE / "built"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
)
_LINK = ("-static-libstdc++", "-static-libgcc")


class BuildError(RuntimeError):
    """There is no compiler, or it refused the sources."""


def fingerprint() -> str:
    """Of the sources and of how they are compiled; a library of another one is out of date."""
    digest = sha256(repr((_FLAGS, _LINK, sorted(INSTRUCTION_SETS.items()))).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def library_path(instruction_set: str, folder: Path = BUILT) -> Path:
    """Where the library for that instruction set is."""
    return folder / f"liborcastream_{instruction_set}.so"


def build(folder: Path = BUILT) -> list[Path]:
    """One library per instruction set, in `folder`; BuildError with what the compiler says."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = fingerprint()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda name: _compile(name, folder, stamp), INSTRUCTION_SETS))


def _compile(instruction_set: str, folder: Path, stamp: str) -> Path:
    target = library_path(instruction_set, folder)
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    command = [os.environ.get("CXX", "c++"), *_FLAGS, *compiler_flags(instruction_set)]
    command += [f'-DORCA_FINGERPRINT="{stamp}"', *map(str, sorted(SOURCES.glob("*.cpp"))), *_LINK]
    try:
        done = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"no C++ compiler: {error}") from None
    if done.returncode:
        raise BuildError(f"{instruction_set}: {done.stderr.strip()}")
    unfinished.replace(target)
    return target


def main() -> int:
    """Build, and say in one line what came of it; a missing compiler is no error, for torch serves without."""
    try:
        built = build()
    except BuildError as error:
        print(f"compiled operators: not built, the slower ones of torch will serve ({error})", file=sys.stderr)
        return 0
    print(f"compiled operators: {', '.join(path.stem.removeprefix('liborcastream_') for path in built)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
