"""`make demo` as users run it, without a terminal."""

import io
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from orcastream.cli.answer import Answer
from orcastream.cli.demo_view import PlainLog, figures, progress
from orcastream.demo.prompts import SHOWCASE
from tests.cli.processes import Terminal


@pytest.mark.server
def test_the_demo_answers_everything_with_both_workers(run: Callable[..., Terminal]) -> None:
    demo = run("-m", "orcastream.cli.demo", env={"ORCASTREAM_PORT": "nobody's business"})
    assert demo.wait() == 0, demo.text
    assert f"{len(SHOWCASE)} of {len(SHOWCASE)} answers are as expected." in demo.text
    assert "served by worker-1, worker-2." in demo.text
    assert re.search(r"TTFT ms +TBT ms +tokens +tokens/s +worker +answer", demo.text)
    assert demo.text.rstrip().endswith("All processes are stopped.")


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_whose_terminal_is_closed_leaves_no_process(
    run: Callable[..., Terminal], tmp_path: Path, number: signal.Signals
) -> None:
    demo = run("-m", "orcastream.cli.demo", env={"TMPDIR": str(tmp_path)})
    demo.wait_for("Ready after")
    demo.signal(number)
    assert demo.wait() == 130, demo.text
    assert not list(tmp_path.glob("orcastream-demo-*"))


def answers() -> list[Answer]:
    """Return one correct answer, one wrong answer that was taken over, and one that has not begun."""
    right = Answer("Count", "1, 2", "1, 2", ["host-11-a"], 3, "stop", None, 10.0, 10.1, 10.3, True)
    wrong = Answer("A long question, longer than its column", "b", "a" * 200, ["host-11-a", "host-12-b"], ended=True)
    return [right, wrong, Answer("Later", "c")]


def name_of(worker: str) -> str:
    return {"11": "worker-1", "12": "worker-2"}[worker.split("-")[1]]


def shown(table: object, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, quiet=False, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def test_the_table_of_figures_fits_80_columns() -> None:
    lines = shown(figures(answers(), name_of))
    assert max(map(len, lines)) <= 80
    assert "…" not in lines[1]
    (count,) = (line for line in lines if "Count" in line)
    assert count.split() == ["Count", "100", "100.0", "3", "10", "worker-1", "correct"]
    assert any("worker-1" in line and "WRONG" in line for line in lines)


def test_a_long_answer_shows_its_newest_part() -> None:
    lines = shown(progress(answers(), name_of, 80))
    assert max(map(len, lines)) <= 80
    assert any("…aaa" in line for line in lines)


def test_the_plain_log_reports_each_event_once() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    log = PlainLog(console, answers(), name_of)
    log.update()
    log.update()
    assert [line.split("  ", 2)[-1].strip() for line in console.export_text().splitlines()] == [
        "#1  worker-1 answers: Count",
        "#1  ended: 1, 2",
        "#2  worker-1 → worker-2 answers: A long question, longer than its column",
        f"#2  ended: {'a' * 200}",
    ]
