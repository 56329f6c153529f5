"""What pyproject.toml cannot say: the wheel carries the compiled operators, which know nothing of Python's ABI.

ORCASTREAM_NATIVE=0 builds without them. Then the wheel fits every platform, and torch's own operators serve.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, OptionError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from orcastream.engine.native.build import OBJECTS, build, library_path  # noqa: E402  (found by the path above)
from orcastream.engine.native.compiler import BuildError, NoCompiler  # noqa: E402  (found by the path above)
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS  # noqa: E402  (found by the path above)

_BUILT = "orcastream/engine/native/built"


def native() -> bool:
    """Whether the operators are to be compiled; OptionError for a value that means nothing."""
    value = os.environ.get("ORCASTREAM_NATIVE", "1")
    if value not in ("0", "1"):
        raise OptionError(f"ORCASTREAM_NATIVE: got {value!r}, allowed: 0, 1")
    return value == "1"


class PlatformDistribution(Distribution):
    """A distribution of one platform, unless it is built without the operators."""

    def has_ext_modules(self) -> bool:
        """Where there are some, setuptools runs build_ext and writes a wheel for this platform."""
        return native()


class BuildOperators(build_ext):
    """Compiles the operators into the wheel; for an editable install, among the sources."""

    def run(self) -> None:
        """Build; CompileError without a compiler, except in an editable install, which does with torch's operators."""
        try:
            if self.editable_mode:
                build()
            else:
                build(Path(self.build_lib, _BUILT), OBJECTS)
        except NoCompiler as error:
            if not self.editable_mode:
                raise CompileError(
                    f"the CPU operators need a C++17 compiler with OpenMP ({error}); on Debian: apt-get install g++; "
                    "a wheel without them: ORCASTREAM_NATIVE=0"
                ) from None
            self.warn(f"compiled operators: none, the slower ones of torch serve ({error})")
        except BuildError as error:
            raise CompileError(str(error)) from None

    def get_outputs(self) -> list[str]:
        """The libraries that there are."""
        if self.editable_mode:
            return []
        paths = (library_path(name, Path(self.build_lib, _BUILT)) for name in INSTRUCTION_SETS)
        return [str(path) for path in paths if path.exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing has to be copied or linked: the libraries of an editable install are built where they are used."""
        return {}


class PlatformWheel(bdist_wheel):
    """Its tag names a platform, and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-linux_x86_64, say; py3-none-any without the operators."""
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=PlatformDistribution,
    ext_modules=[],
    cmdclass={"build_ext": BuildOperators, "bdist_wheel": PlatformWheel},
)
