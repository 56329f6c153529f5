"""Signals that arrive where Python cannot raise an exception; each test ends its own process."""

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
_IN_A_DESTRUCTOR = """
import contextlib, os, signal, threading
from orcastream.telemetry.leaving import leaving
from orcastream.telemetry.setup import Telemetry

telemetry = Telemetry()
telemetry.closing(lambda: os.write(1, b"exported"))
signal.signal(signal.SIGTERM, leaving(telemetry))

class Loaded:
    def __del__(self):
        with LOCK:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(100):
                pass

Loaded()
print("went on")
"""


def _run(program: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def test_recorded_data_is_exported_and_the_process_ends() -> None:
    assert _run(_IN_A_DESTRUCTOR.replace("LOCK", "contextlib.nullcontext()")) == (0, "exported", "")


def test_a_process_that_was_just_starting_a_thread_ends_too() -> None:
    assert _run(_IN_A_DESTRUCTOR.replace("LOCK", "threading._active_limbo_lock")) == (0, "", "")


def test_nohup_is_respected() -> None:
    program = """
import os, signal
from orcastream.telemetry.leaving import leaving, on_stop
signal.signal(signal.SIGHUP, signal.SIG_IGN)
on_stop(leaving())
os.kill(os.getpid(), signal.SIGHUP)
print("went on", flush=True)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
on_stop(leaving())
os.kill(os.getpid(), signal.SIGHUP)
"""
    assert _run(program) == (0, "went on\n", "")
