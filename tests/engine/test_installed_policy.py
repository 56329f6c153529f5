"""A policy from an installed package is available by name, without an import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

POLICY = '''
from orcastream.engine.schedule.policies import register
from orcastream.engine.schedule.policies.fcfs import FirstComeFirstServed


@register("visiting")
class Visiting(FirstComeFirstServed):
    """First come, first served, under a name of its own."""
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed distributions with one that names an entry point of the group."""
    (tmp_path / "visiting.py").write_text(POLICY, encoding="utf-8")
    info = tmp_path / "visiting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: visiting\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[orcastream.policies]\nvisiting = visiting\n", encoding="utf-8")
    return tmp_path


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_policy_of_an_installed_package_is_known(site: Path) -> None:
    code = "from orcastream.engine import EngineConfig; print(EngineConfig('x', policy='visiting').policy)"
    found = python(code, site, ROOT)
    assert (found.stdout, found.stderr) == ("visiting\n", "")


def test_the_policy_is_unknown_without_its_package() -> None:
    refused = python("from orcastream.engine import EngineConfig; EngineConfig('x', policy='visiting')", ROOT)
    assert "policy: got 'visiting'" in refused.stderr
