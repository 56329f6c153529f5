"""The demo's display: answers side by side while they arrive, and a table of figures afterwards."""

import time
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orcastream.cli.answer import Answer

_QUESTION_WIDTH = 24


def progress(answers: Sequence[Answer], name_of: Callable[[str], str], width: int) -> Table:
    """Return the answers so far: one line each, the end of a long one."""
    table = Table(box=box.SIMPLE, expand=True, pad_edge=False, collapse_padding=True)
    table.add_column("question", no_wrap=True, max_width=_QUESTION_WIDTH)
    table.add_column("worker", no_wrap=True)
    table.add_column("answer", no_wrap=True, ratio=1)
    room = max(10, width - _QUESTION_WIDTH - 14)
    for answer in answers:
        shown = answer.text if len(answer.text) <= room else "…" + answer.text[1 - room :]
        state = _state(answer)
        table.add_row(answer.question, _served_by(answer, name_of), Text(shown.replace("\n", " "), style=state))
    return table


def figures(answers: Sequence[Answer], name_of: Callable[[str], str]) -> Table:
    """Return a table with TTFT, TBT, rate, worker and verdict of each answer."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("question", no_wrap=True, max_width=_QUESTION_WIDTH)
    for heading in ("TTFT ms", "TBT ms", "tokens", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("worker", min_width=8, max_width=8)
    table.add_column("answer", no_wrap=True, min_width=7)
    for answer in answers:
        table.add_row(
            answer.question,
            _number(answer.ttft_s, 1000, 0),
            _number(answer.tbt_s, 1000, 1),
            str(answer.num_tokens),
            _number(answer.tokens_per_s, 1, 0),
            _served_by(answer, name_of),
            Text("correct" if answer.correct else "WRONG", style="green" if answer.correct else "bold red"),
        )
    return table


class PlainLog:
    """The demo's display without a terminal: a line when a worker starts an answer, and one when it ends."""

    def __init__(self, console: Console, answers: Sequence[Answer], name_of: Callable[[str], str]) -> None:
        self._console = console
        self._answers = answers
        self._name_of = name_of
        self._begun = time.monotonic()
        self._told: set[tuple[int, str]] = set()

    def update(self) -> None:
        """Print changes since the last call."""
        for number, answer in enumerate(self._answers, start=1):
            if answer.workers:
                self._tell(number, "begun", f"{_served_by(answer, self._name_of)} answers: {answer.question}")
            if answer.ended:
                self._tell(number, "ended", f"ended: {answer.error or answer.text}")

    def _tell(self, number: int, what: str, line: str) -> None:
        if (number, what) not in self._told:
            self._told.add((number, what))
            passed = time.monotonic() - self._begun
            self._console.print(f"{passed:6.2f} s  #{number:<2} {line}", markup=False, highlight=False, soft_wrap=True)


def _state(answer: Answer) -> str:
    if not answer.ended:
        return ""
    return "green" if answer.correct else "red"


def _served_by(answer: Answer, name_of: Callable[[str], str]) -> str:
    return " → ".join(dict.fromkeys(name_of(worker) for worker in answer.workers)) or "-"


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
