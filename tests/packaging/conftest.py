"""The wheel, built once."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which(shlex.split(os.environ.get("CXX") or "c++")[0])
"""The C++ compiler of this machine, if there is one."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy of the sources without output of earlier builds."""
    sources = copy_of_the_sources(tmp_path_factory.mktemp("sources"))
    built = build_wheel(sources, ORCASTREAM_NATIVE="1" if COMPILER else "0")
    assert built.returncode == 0, built.stderr
    (found,) = (sources / "dist").glob("*.whl")
    return found


def copy_of_the_sources(folder: Path) -> Path:
    """Copy everything but output of earlier builds; compiled files stay, because up-to-date ones are reused."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
    return Path(shutil.copytree(ROOT, folder / "sources", symlinks=True, ignore=ignored))


def build_wheel(sources: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel in the folder `dist` of the sources."""
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", str(sources))
    return subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
