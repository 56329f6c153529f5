"""The C++ compiler that builds the operators."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

COMPILING = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",  # GCC 12 warns of its own intrinsics
)
LINKING = ("-shared", "-fopenmp", "-static-libstdc++", "-static-libgcc")
"""At load time libgomp.so.1 is found in the process, because torch has loaded it; nothing else is needed."""

_PROBE = "#include <omp.h>\n#include <string>\nint threads() { return omp_get_max_threads() + std::string().size(); }\n"


class BuildError(RuntimeError):
    """The compiler refused the sources, or a folder cannot be written to; the message has the reason."""


class NoCompiler(BuildError):
    """There is no C++17 compiler with OpenMP."""


@dataclass(frozen=True)
class Compiler:
    """A command line that compiles C++, such as `g++` or `ccache clang++`."""

    command: tuple[str, ...]

    @classmethod
    def find(cls) -> "Compiler":
        """Return the compiler that the variable CXX names, else `c++`; whether it exists shows on first use."""
        return cls(tuple(shlex.split(os.environ.get("CXX", "")) or ("c++",)))

    @cached_property
    def version(self) -> str:
        """Return its version text. Raises NoCompiler if it cannot be started."""
        return self._run("--version")

    def why_not(self, flags: Sequence[str]) -> str | None:
        """Return why it cannot build a library with these flags, or None. Raises NoCompiler if it cannot be started."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.cpp")
            source.write_text(_PROBE, encoding="utf-8")
            try:
                self._run(*COMPILING, *flags, str(source), *LINKING, "-o", str(source.with_suffix(".so")))
            except NoCompiler:
                raise
            except BuildError as error:
                return next((line for line in str(error).splitlines() if "error" in line), str(error))
        return None

    def compile(self, source: Path, flags: Sequence[str], target: Path) -> None:
        """Compile one object file, which appears atomically. Raises BuildError."""
        self._make(target, *COMPILING, *flags, "-c", str(source))

    def link(self, objects: Sequence[Path], flags: Sequence[str], target: Path) -> None:
        """Link one library, which appears atomically. Raises BuildError."""
        self._make(target, *flags, *map(str, objects), *LINKING)

    def _make(self, target: Path, *arguments: str) -> None:
        unfinished = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            self._run(*arguments, "-o", str(unfinished))
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoCompiler(f"{self.command[0]}: {error.strerror}") from None
        if done.returncode:
            raise BuildError((done.stderr or done.stdout).strip())
        return done.stdout
