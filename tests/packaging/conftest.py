"""The wheel, built once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy of the sources, where nothing is left from earlier builds."""
    sources = tmp_path_factory.mktemp("sources") / "orcastream"
    shutil.copytree(ROOT, sources, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    out = sources.parent / "out"
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(sources))
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built
