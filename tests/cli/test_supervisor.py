"""Programs are kept running, stopped in order, and never outlive the process that started them."""

import asyncio
import os
import resource
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orcastream.broker.back_off import BackOff
from orcastream.cli.process import Program
from orcastream.cli.supervisor import GaveUp, Supervisor
from tests.cli.processes import ProcessWatch, Terminal
from tests.patience import PATIENCE_S

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
)


class Report:
    """Turns a supervisor's reports into events that a test can await."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self._queue.put_nowait((name, line))

    async def wait_for(self, beginning: str) -> str:
        """Return the next line with this prefix."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                _, line = await self._queue.get()
            if line.startswith(beginning):
                return line


def quick() -> BackOff:
    return BackOff(0.01, 0.04)


async def pause_after_death(report: Report, supervisor: Supervisor, name: str) -> float:
    """Kill a running program; return the seconds until it is restarted."""
    await report.wait_for("up")
    pid = supervisor.pid(name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    said = await report.wait_for("died")
    assert said.startswith("died (killed by SIGKILL), starts again in ")
    return float(said.split()[-2])


async def test_lines_carry_the_name_of_their_program() -> None:
    report = Report()
    supervisor = Supervisor(report)
    await supervisor.start(Program("speaker", SLEEPER))
    await report.wait_for("up")
    assert ("speaker", "up") in report.lines
    await supervisor.stop("speaker", grace_s=10)
    assert supervisor.pid("speaker") is None


async def test_a_program_that_dies_is_restarted_with_growing_pauses() -> None:
    report = Report()
    supervisor = Supervisor(report, quick)
    await supervisor.start(Program("mortal", SLEEPER))
    for longest_s in (0.01, 0.02, 0.04, 0.04):
        assert longest_s / 2 <= await pause_after_death(report, supervisor, "mortal") + 0.005 <= longest_s + 0.01
    await report.wait_for("up")
    await supervisor.stop("mortal", grace_s=10)


async def test_a_program_is_restarted_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    report = Report()
    supervisor = Supervisor(report, quick)
    await supervisor.start(Program("mortal", SLEEPER))
    monkeypatch.setattr(threading.Thread, "start", refused)
    await pause_after_death(report, supervisor, "mortal")
    await report.wait_for("up")
    await supervisor.stop("mortal", grace_s=10)


async def test_a_long_run_resets_the_pause() -> None:
    report = Report()
    supervisor = Supervisor(report, lambda: BackOff(0.1, 600), steady_s=0)
    await supervisor.start(Program("steady", SLEEPER))
    for _ in range(3):
        assert await pause_after_death(report, supervisor, "steady") <= 0.1
    await report.wait_for("up")
    await supervisor.stop("steady", grace_s=10)


async def test_a_program_that_refuses_its_settings_is_not_restarted() -> None:
    report = Report()
    supervisor = Supervisor(report, quick)
    await supervisor.start(Program("picky", (sys.executable, "-c", "import sys; sys.exit(2)")))
    with pytest.raises(GaveUp, match=r"picky cannot run: exit code 2"):
        async with asyncio.timeout(PATIENCE_S):
            await supervisor.gave_up()


async def test_a_program_that_has_served_is_restarted_even_after_a_settings_error(tmp_path: Path) -> None:
    needed = tmp_path / "needed"
    needed.touch()
    source = (
        "import os, sys, time; os.path.exists(sys.argv[1]) or sys.exit(2); print('up', flush=True); time.sleep(600)"
    )
    report = Report()
    supervisor = Supervisor(report, quick, steady_s=0)
    await supervisor.start(Program("needy", (sys.executable, "-c", source, str(needed))))
    await report.wait_for("up")
    needed.unlink()
    pid = supervisor.pid("needy")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await report.wait_for("died (exit code 2), starts again in")
    needed.touch()
    await report.wait_for("up")
    await supervisor.stop("needy", grace_s=10)


@pytest.fixture
def without_descriptors() -> Iterator[Callable[[bool], None]]:
    """Says whether this process may open no more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(to_open_ones: bool) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]) if to_open_ones else before)

    yield limit
    limit(False)


async def test_a_program_that_cannot_be_started_now_is_tried_again(
    without_descriptors: Callable[[bool], None],
) -> None:
    report = Report()
    supervisor = Supervisor(report, quick)
    await supervisor.start(Program("mortal", SLEEPER))
    without_descriptors(True)
    await pause_after_death(report, supervisor, "mortal")
    for _ in range(2):
        await report.wait_for("cannot start (Too many open files), starts again in ")
    without_descriptors(False)
    await report.wait_for("up")
    await supervisor.stop("mortal", grace_s=10)


async def test_a_first_start_that_fails_is_told_in_a_sentence(without_descriptors: Callable[[bool], None]) -> None:
    supervisor = Supervisor(Report(), quick)
    without_descriptors(True)
    with pytest.raises(GaveUp, match="mortal cannot start: Too many open files"):
        await supervisor.start(Program("mortal", SLEEPER))


async def test_a_program_deaf_to_sigterm_is_killed_after_the_grace() -> None:
    report = Report()
    supervisor = Supervisor(report)
    await supervisor.start(Program("deaf", STUBBORN))
    await report.wait_for("up")
    await supervisor.stop("deaf", grace_s=0.05)
    assert await report.wait_for("stopped") == "stopped (killed by SIGKILL)"


async def test_stopping_between_restarts_starts_nothing() -> None:
    report = Report()
    supervisor = Supervisor(report, lambda: BackOff(600, 600))
    await supervisor.start(Program("resting", (sys.executable, "-c", "")))
    await report.wait_for("died")
    await supervisor.stop("resting", grace_s=10)
    assert supervisor.pid("resting") is None


async def test_a_missing_command_is_reported(tmp_path: object) -> None:
    report = Report()
    supervisor = Supervisor(report, quick)
    await supervisor.start(Program("nothing", (f"{tmp_path}/no-such-command",)))
    assert (
        await report.wait_for(f"{tmp_path}/no-such-command") == f"{tmp_path}/no-such-command: No such file or directory"
    )
    await supervisor.stop("nothing", grace_s=10)


async def test_a_very_long_line_is_one_line() -> None:
    report = Report()
    supervisor = Supervisor(report)
    await supervisor.start(Program("wordy", (sys.executable, "-c", "print('x' * 300_000); input()")))
    assert await report.wait_for("x") == "x" * 300_000
    await supervisor.stop("wordy", grace_s=10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kernels end a child with its parent")
def test_children_end_with_a_parent_that_is_killed(
    run: Callable[..., Terminal], watch: Callable[[int], ProcessWatch]
) -> None:
    parent = run(
        "-c",
        textwrap.dedent(f"""
            import asyncio
            from orcastream.cli.process import Program
            from orcastream.cli.supervisor import Supervisor

            async def main():
                supervisor = Supervisor(lambda name, line: print(name, line, flush=True))
                for name in ("one", "two"):
                    await supervisor.start(Program(name, {STUBBORN!r}))
                await asyncio.Event().wait()

            asyncio.run(main())
        """),
    )
    children = [watch(int(parent.wait_for(rf"{name} pid (\d+)")[1])) for name in ("one", "two")]
    for _ in children:
        parent.wait_for("up")
    parent.signal(signal.SIGKILL)
    assert all(child.gone_within(PATIENCE_S) for child in children)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kernels end a child with its parent")
def test_a_child_whose_parent_is_already_gone_never_runs(run: Callable[..., Terminal]) -> None:
    helper = run("cli/child.py", "1", "9", sys.executable, "-c", "print('ran')")
    assert helper.wait() == 1
    assert "ran" not in helper.text
