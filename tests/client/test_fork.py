"""A forked process that inherits its parent's client."""

import subprocess
import sys

from tests.cli.processes import ROOT

_PROGRAM = """
import os, signal
from orcastream.client import Client
client = Client("http://127.0.0.1:1", "m")
child = os.fork()
if child == 0:
    signal.alarm(10)
    raise SystemExit(0)
status = os.waitpid(child, 0)[1]
client.close()
raise SystemExit(os.waitstatus_to_exitcode(status) != 0)
"""


def test_a_forked_process_ends_though_it_has_a_client() -> None:
    assert subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, check=False, timeout=60).returncode == 0
