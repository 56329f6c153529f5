"""Stop signals cancel the work of a command once, however often they come."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

PROGRAM = """
import asyncio, os, signal, sys
from orcastream.cli.interruption import cancel_on_stop

number = signal.Signals[sys.argv[1]]

async def work():
    cancel_on_stop(asyncio.current_task())
    try:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
    finally:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
        print("cleaned up")

try:
    asyncio.run(work())
except asyncio.CancelledError:
    os.kill(os.getpid(), number)
    print("cancelled", flush=True)
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_signals_during_and_after_the_clean_up_change_nothing(number: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, number], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split("\n")) == (0, ["cleaned up", "cancelled", ""]), done.stderr


def test_what_nohup_ignores_stays_ignored() -> None:
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{PROGRAM}".replace(
        "await asyncio.Event().wait()", "await asyncio.sleep(0)"
    ).replace("asyncio.run(work())", "asyncio.run(work()); print('done')")
    done = subprocess.run(
        [sys.executable, "-c", ignoring, "SIGHUP"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split("\n")) == (0, ["cleaned up", "done", ""]), done.stderr
