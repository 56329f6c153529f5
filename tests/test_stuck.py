"""A stuck test reports where, and does not block the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOOKS = "from tests import stuck\nfrom tests.stuck import *\nstuck.TEARDOWN_S = 5.0\n"
WAITS = """
import asyncio

async def answer():
    await asyncio.Event().wait()

def test_it():
    asyncio.run(answer())
"""
DEAF_TEARDOWN = """
import threading
import pytest
from tests import stuck

stuck.GRACE_S = 1.0

@pytest.fixture
def server():
    yield
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass

def test_it(server):
    assert False
"""
THREAD = """
import threading

def test_it():
    threading.Thread(target=threading.Event().wait).start()
"""


@pytest.mark.parametrize(
    ("test", "told"),
    [
        (WAITS, ("Failed: Timeout (>3.0s)", "in answer", "await asyncio.Event().wait()")),
        (DEAF_TEARDOWN, ("Timeout (0:00:06)!", "in server")),
        (THREAD, ("1 passed", "Timeout (0:00:05)!", "in _shutdown")),
    ],
    ids=["a test", "a teardown that exceeds its time", "a thread after the last test"],
)
def test_a_stuck_test_reports_where_and_ends(tmp_path: Path, test: str, told: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_it.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_timeout", "--timeout", "3", "-c", os.devnull, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for words in told:
        assert words in done.stdout + done.stderr
