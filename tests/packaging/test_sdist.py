"""The source distribution contains what a wheel is built from, and nothing that does not run from it."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import build_wheel, copy_of_the_sources

pytestmark = pytest.mark.server
"""None starts one, but building takes as long."""
BESIDE = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder))
    environment = {**os.environ, "ORCASTREAM_NATIVE": "0"}
    subprocess.run([*command, copy_of_the_sources(folder)], check=True, capture_output=True, env=environment)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_it_has_the_package_alone_and_no_tests(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} == {*BESIDE, "orcastream", "orcastream.egg-info"}


def test_a_wheel_built_from_it_equals_one_built_from_a_checkout(unpacked: Path, tmp_path: Path) -> None:
    wheels = []
    for sources in (unpacked, copy_of_the_sources(tmp_path)):
        built = build_wheel(sources, ORCASTREAM_NATIVE="0")
        assert built.returncode == 0, built.stderr
        (wheel,) = (sources / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wheels.append({info.filename: info.CRC for info in archive.infolist()})
    assert wheels[0] == wheels[1]
