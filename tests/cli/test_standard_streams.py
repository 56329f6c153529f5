"""Commands whose output cannot be written, or whose streams are closed."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from orcastream.cli import gateway_processes
from orcastream.cli.command import USAGE_ERROR
from orcastream.cli.process import Program
from orcastream.cli.supervisor import Supervisor
from orcastream.cli.up import TextLines
from orcastream.worker import main as worker_main
from tests.cli.processes import ROOT
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # the rest is not read


@pytest.mark.parametrize(
    "show", [lambda *line: TextLines(1).show(*line), gateway_processes._pass_on], ids=["up", "gateway"]
)
async def test_programs_keep_running_if_their_lines_cannot_be_written(
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


def command(*arguments: str, redirected: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """A command whose streams a shell redirects."""
    program = (sys.executable, "-P", "-m", "orcastream.cli.main", *arguments)
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirected}', "bash", *program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("keys",), ("completion", "bash")])
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    done = command(*arguments, redirected="> /dev/full")
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"orcastream {arguments[0]}: its output or data cannot be written: No space left on device\n"
    )


def test_keys_that_cannot_be_shown_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b'{"%s": {"tenant": "alpha"}}' % (b"0" * 64))
    listing = ("keys", "list", "--api-keys-file", str(path))
    full = command(*listing, redirected="> /dev/full")
    assert (full.returncode, full.stderr.decode()) == (
        1,
        "orcastream keys: its output or data cannot be written: No space left on device\n",
    )
    closed = command(*listing, redirected="| true; exit ${PIPESTATUS[0]}")
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_reader_that_closes_early_is_no_error() -> None:
    done = command("completion", "bash", redirected="| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirected", ["2> /dev/full", "2>&1 > /dev/null | true; exit ${PIPESTATUS[0]}"])
@pytest.mark.parametrize("arguments", [("nonsense",), ("gateway", "--redis-url", "")])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(arguments: tuple[str, ...], redirected: str) -> None:
    assert command(*arguments, redirected=redirected, PYTHONUNBUFFERED="").returncode == USAGE_ERROR


def test_a_worker_that_cannot_say_why_it_ends_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, unwritable: io.TextIOWrapper
) -> None:
    unwritable.reconfigure(line_buffering=True)  # as standard error
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", unwritable)
        assert worker_main._unusable("model: not there") == USAGE_ERROR
    unwritable.flush()  # as Python does at exit; what it cannot write changes the exit code


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_alone_are_no_error(closed: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command("up", "--data-dir", str(tmp_path / "file"), redirected=closed)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    if "2>" not in closed:
        assert b"data_dir (--data-dir, ORCASTREAM_DATA_DIR): got" in done.stderr


def test_characters_missing_from_an_encoding_are_escaped() -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = command("tokenize", "--model", "/nö", "hi", redirected="", **plain)
    assert (done.returncode, done.stderr[:19]) == (2, b"orcastream tokenize")
    helped = command("up", "--help", redirected="", **plain)
    assert (helped.returncode, helped.stderr) == (0, b"")
