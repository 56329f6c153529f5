"""What becomes of commands whose output cannot be written, or whose streams are closed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from orcastream.cli import gateway_processes
from orcastream.cli.process import Program
from orcastream.cli.supervisor import Supervisor
from orcastream.cli.up import TextLines
from tests.cli.test_supervisor import SLEEPER, Report, quick


def no_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.fixture(params=[lambda: "/dev/full", no_reader], ids=["full", "no reader"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    """A stream on a full disk, or without a reader."""
    with open(request.param(), "w") as stream:
        yield stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what is left of it is not looked at


@pytest.mark.parametrize(
    "show", [lambda *line: TextLines(1).show(*line), gateway_processes._pass_on], ids=["up", "gateway"]
)
async def test_programs_are_kept_running_where_their_lines_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, show: Callable[[str, str], None], unwritable: TextIO
) -> None:
    report = Report()

    def shown(name: str, line: str) -> None:
        show(name, line)
        report(name, line)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", unwritable)
        patched.setattr(sys, "stderr", unwritable)
        supervisor = Supervisor(shown, quick)
        await supervisor.start(Program("mortal", SLEEPER))
        await report.wait_for("up")
        pid = supervisor.pid("mortal")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await report.wait_for("died")
        await report.wait_for("up")
        await supervisor.stop("mortal", grace_s=10)
