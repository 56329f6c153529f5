"""Real processes under attack: the product keeps its promises, and the checker detects deliberately broken products."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import KINDS
from tests.chaos.faults import faults_of
from tests.redis_server import runs_clusters, system_binary

_ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.server


def run_chaos(tmp_path: Path, **options: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the suite in its own process; return the process and its figures."""
    figures = tmp_path / "chaos.json"
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.run", "--json", str(figures), *flags],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, json.loads(figures.read_text()) if figures.exists() else {}


@pytest.mark.timeout(1200)
def test_each_kind_of_fault_breaks_no_promise(tmp_path: Path) -> None:
    done, figures = run_chaos(tmp_path, minutes=1, seed=3, rate=1.5, faults_per_minute=18)
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures["requests"] > 50
    begun = {line.split()[4] for line in figures["fault_log"]}
    assert begun == set(faults_of("always"))
    assert figures["faults"] > 10
    assert {kind: figures[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0)


# Seeds whose plans have few faults, but each kind: a master is replaced in all three ways; a worker, nodes of a cluster
# and the connections to them are hit in turn.
_PROMOTIONS = {"minutes": 0.4, "faults_per_minute": 8, "seed": 79}
_CLUSTER = {"minutes": 0.4, "faults_per_minute": 10, "seed": 23}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("mode", "fault"), [("sentinel", "replica-promoted"), ("everysec", "machine-lost")])
def test_losses_of_redis_itself_are_repaired_or_reported(tmp_path: Path, mode: str, fault: str) -> None:
    done, figures = run_chaos(tmp_path, mode=mode, faults=fault, **_PROMOTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures["losses"]["times"] > 0
    assert figures["requests"] > 20
    assert {kind: figures[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0)


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not runs_clusters(system_binary()), reason="no redis-server of version 7 found on this machine")
def test_cluster_nodes_fail_and_return(tmp_path: Path) -> None:
    done, figures = run_chaos(
        tmp_path, mode="cluster", faults="redis-kill,redis-freeze,redis-refuse,worker-kill", **_CLUSTER
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures["requests"] > 20
    assert {kind: figures[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0)


_CAUGHT_AS = {
    "repeat": "repeated",
    "no-terminal": "missing_terminal",
    "ignore-cancel": "after_cancel",
    "leak": "leaks",
    "skip": "lost",
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("broken", "options"),
    [
        (["repeat", "no-terminal", "ignore-cancel", "leak"], {"load": "redis,cancel,redis-cancel", "faults": "none"}),
        (["skip"], {"load": "redis,stay", "faults": "worker-kill", "faults_per_minute": 30, "minutes": 0.5}),
    ],
    ids=["quiet", "killed"],
)
def test_a_broken_product_is_caught(tmp_path: Path, broken: list[str], options: dict[str, object]) -> None:
    done, figures = run_chaos(tmp_path, **{"break": ",".join(broken), "minutes": 0.2, "settle": 10, **options})
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in broken if not figures[_CAUGHT_AS[name]]] == [], done.stdout


@pytest.mark.parametrize("mode", ["floppy"])
def test_a_mode_that_cannot_be_run_is_refused(tmp_path: Path, mode: str) -> None:
    done, figures = run_chaos(tmp_path, mode=mode)
    assert (done.returncode, figures) == (2, {})
    assert f"MODE={mode}" in done.stderr


def test_a_fault_that_a_mode_does_not_support_is_refused(tmp_path: Path) -> None:
    done, figures = run_chaos(tmp_path, mode="always", faults="replica-promoted")
    assert (done.returncode, figures) == (2, {})
    assert "--faults: got replica-promoted, allowed: worker-kill" in done.stderr
