"""Policies, backends and passes from installed packages are known without an import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

POLICY = '''
from orcastream.engine.schedule.policies import register
from orcastream.engine.schedule.policies.fcfs import FirstComeFirstServed


@register("{name}")
class Visiting(FirstComeFirstServed):
    """First come, first served, under a name of its own."""
'''

BACKEND = '''
from orcastream.engine.attention.base import register
from orcastream.engine.attention.torch_backend import TorchBackend


@register("visiting")
class Visiting(TorchBackend):
    """The reference, under a name of its own."""
'''

PASS = '''
from orcastream.engine.model.passes.base import Pass, register


@register("visiting")
class Visiting(Pass):
    """Finds nothing to replace."""

    def apply(self, model):
        return 0
'''

KNOWN = "from orcastream.engine import EngineConfig; print(EngineConfig('x', policy='{}').policy)"
ADDED = "from orcastream.engine.model.passes import added_passes; print(*(each.name for each in added_passes()))"


def install(site: Path, group: str, code: str) -> Path:
    """Put a distribution into a folder; it names its module as an entry point of the group."""
    (site / "visiting.py").write_text(code, encoding="utf-8")
    info = site / "visiting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: visiting\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\nvisiting = visiting\n", encoding="utf-8")
    return site


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_policy_of_an_installed_package_is_known(tmp_path: Path) -> None:
    site = install(tmp_path, "orcastream.policies", POLICY.format(name="visiting"))
    for first in ("", "import visiting; "):  # its module imports the engine, which imports it
        found = python(first + KNOWN.format("visiting"), site, ROOT)
        assert (found.stdout, found.stderr) == ("visiting\n", "")


def test_the_policy_is_unknown_without_its_package() -> None:
    refused = python(KNOWN.format("visiting"), ROOT)
    assert "policy: got 'visiting'" in refused.stderr


def test_a_backend_of_an_installed_package_is_known(tmp_path: Path) -> None:
    site = install(tmp_path, "orcastream.attention_backends", BACKEND)
    found = python(
        "from orcastream.engine.attention import BACKENDS; print(BACKENDS['visiting'].__module__)", site, ROOT
    )
    assert (found.stdout, found.stderr) == ("visiting\n", "")


def test_a_pass_of_an_installed_package_is_known(tmp_path: Path) -> None:
    site = install(tmp_path, "orcastream.model_passes", PASS)
    for first in ("", "import visiting; "):
        found = python(first + ADDED, site, ROOT)
        assert (found.stdout, found.stderr) == ("visiting\n", "")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no GPU')", "SystemExit: no GPU"),
        ("import visited", "ModuleNotFoundError: No module named 'visited'"),
        (POLICY.format(name="sjf"), "ValueError: 'sjf' is the name of orcastream.engine.schedule.policies.sjf."),
    ],
)
def test_an_unusable_package_is_one_line_and_stops_nobody_else(tmp_path: Path, code: str, why: str) -> None:
    site = install(tmp_path, "orcastream.policies", code)
    found = python(KNOWN.format("sjf"), site, ROOT)
    assert found.stdout == "sjf\n"
    assert found.stderr.startswith(f"orcastream.policies: visiting is left out: {why}")
    assert found.stderr.count("\n") == 1
