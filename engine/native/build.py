"""Compile the operators: `python -m orcastream.engine.native.build`. Needs a C++17 compiler with OpenMP (CXX)."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from orcastream.engine.native.compiler import COMPILING, LINKING, BuildError, Compiler, NoCompiler
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, compiler_flags

HERE = Path(__file__).parent
SOURCES = HERE / "src"
BUILT = HERE / "built"
OBJECTS = BUILT / "objects"
"""Object files, whose names identify all their inputs, so that any build can reuse them."""
NO_COMPILER = 3
"""Exit status of the command without a compiler; callers that can use torch's operators continue."""
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_DEFINED = "ORCA_FINGERPRINT"


def fingerprint() -> str:
    """Return a digest of the sources and of how they are compiled; a library with another one is out of date."""
    digest = sha256(repr((COMPILING, LINKING, sorted(INSTRUCTION_SETS.items()))).encode())
    for path in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def library_path(instruction_set: str, folder: Path = BUILT) -> Path:
    """Return the path of the library for that instruction set."""
    return folder / f"liborcastream_{instruction_set}.so"


def build(folder: Path = BUILT, objects: Path = OBJECTS) -> list[Path]:
    """Build one library per instruction set that the compiler supports, in `folder`; keep those that are up to date.

    Object files stay in `objects`, each until its source, a header that it includes, or the compiler changes.
    Raises NoCompiler, or BuildError with the compiler's message, or with that of a folder that cannot be written to.
    """
    stamp = fingerprint()
    found = [library_path(name, folder) for name in INSTRUCTION_SETS]
    if not all(_is_current(path, stamp) for path in found):
        try:
            _Build(Compiler.find(), stamp, folder, objects).run()
        except OSError as error:
            raise BuildError(str(error)) from None
    return [path for path in found if path.exists()]


def _is_current(library: Path, stamp: str) -> bool:
    return library.exists() and stamp.encode() in library.read_bytes()


class _Build:
    """Brings every library in `folder` up to date."""

    def __init__(self, compiler: Compiler, stamp: str, folder: Path, objects: Path) -> None:
        self._compiler = compiler
        self._stamp = stamp
        self._folder = folder
        self._objects = objects

    def run(self) -> None:
        for folder in (self._folder, self._objects):
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            names = self._compilable(pool)
            sources = sorted(SOURCES.glob("*.cpp"))
            jobs = [(name, source) for source in sources for name in names]
            compiled = dict(zip(jobs, pool.map(lambda job: self._compile(*job), jobs), strict=True))
            list(pool.map(lambda name: self._link(name, [compiled[name, source] for source in sources]), names))
        for left_over in set(self._objects.glob("*.o")) - set(compiled.values()):
            left_over.unlink(missing_ok=True)

    def _compilable(self, pool: ThreadPoolExecutor) -> list[str]:
        """Return the instruction sets that the compiler supports; remove libraries for others."""
        whys = dict(
            zip(
                INSTRUCTION_SETS,
                pool.map(lambda name: self._compiler.why_not(compiler_flags(name)), INSTRUCTION_SETS),
                strict=True,
            )
        )
        if None not in whys.values():
            raise NoCompiler(f"{' '.join(self._compiler.command)}: {list(whys.values())[-1]}")
        for name, why in whys.items():
            if why is not None:
                print(f"compiled operators: not for {name}: {why}", file=sys.stderr)
                library_path(name, self._folder).unlink(missing_ok=True)
        return [name for name, why in whys.items() if why is None]

    def _compile(self, instruction_set: str, source: Path) -> Path:
        """Return the object file of a source, compiled if missing; its name identifies all its inputs."""
        text = b"".join(path.read_bytes() for path in _with_headers(source))
        flags = compiler_flags(instruction_set)
        if _DEFINED.encode() in text:
            flags.append(f'-D{_DEFINED}="{self._stamp}"')
        made_from = repr((self._compiler.command, self._compiler.version, COMPILING, flags)).encode() + text
        target = self._objects / f"{instruction_set}-{source.stem}-{sha256(made_from).hexdigest()[:16]}.o"
        if not target.exists():
            self._compiler.compile(source, flags, target)
        return target

    def _link(self, instruction_set: str, objects: Sequence[Path]) -> None:
        target = library_path(instruction_set, self._folder)
        if not _is_current(target, self._stamp):
            self._compiler.link(objects, compiler_flags(instruction_set), target)


def _with_headers(source: Path) -> list[Path]:
    """Return a source and all headers of this folder that it includes, each once."""
    found: list[Path] = []
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found.append(path)
            waiting += [path.parent / name.decode() for name in _INCLUDE.findall(path.read_bytes())]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Build and print the result in one line; return 1 if the build fails, NO_COMPILER without a compiler, else 0."""
    parser = argparse.ArgumentParser("python -m orcastream.engine.native.build", description=__doc__)
    parser.add_argument("--into", type=Path, default=BUILT, metavar="FOLDER", help="where the libraries go")
    options = parser.parse_args(argv)
    try:
        built = build(options.into, options.into / OBJECTS.name)
    except NoCompiler as error:
        print(f"compiled operators: none; torch's slower ones are used ({error})", file=sys.stderr)
        return NO_COMPILER
    except BuildError as error:
        print(f"compiled operators: none\n{error}", file=sys.stderr)
        return 1
    print(f"compiled operators: {', '.join(path.stem.removeprefix('liborcastream_') for path in built)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
