"""Fixtures of the command's tests: processes that are guaranteed to be gone afterwards."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.processes import ProcessWatch, Terminal


@pytest.fixture
def run() -> Iterator[Callable[..., Terminal]]:
    """Starts a command; ends it with the test."""
    terminals: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        terminals.append(Terminal(*arguments, **options))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def watch() -> Iterator[Callable[[int], ProcessWatch]]:
    """Watches processes by pid."""
    watches: list[ProcessWatch] = []

    def open_watch(pid: int) -> ProcessWatch:
        watches.append(ProcessWatch(pid))
        return watches[-1]

    yield open_watch
    for one in watches:
        one.close()
