"""A stuck test fails and reports where; one that cannot even fail ends its process, and also reports where.

pytest-timeout interrupts a test in its main thread. That does not end a test that catches the interrupting exception,
and for an event loop it shows only the loop; and nothing interrupts the teardown of a failed test. So each task reports
what it waits for, a teardown has its own time limit, and as a last resort faulthandler ends the process: pytest-xdist
counts the test as failed, and continues in a new process.
"""

import asyncio
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import Settings

TEARDOWN_S = 120.0
"""What the teardown of a test may take, and the end of the process behind the last one."""
GRACE_S = 60.0
"""So long after the interruption a test has failed."""
_stderr = pytest.StashKey[int]()
_settings = pytest.StashKey[Settings]()

Handler = Callable[[int, FrameType | None], object]


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error: while a test runs, pytest puts a file in its place."""
    config.stash[_stderr] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> Generator[None, object, object]:
    """Start the time limit: for the test or, again, for its teardown."""
    item.stash[_settings] = settings
    done = yield
    fail = signal.getsignal(signal.SIGALRM)
    if callable(fail):
        signal.signal(signal.SIGALRM, _after_the_tasks(fail))
    _end_process_in(settings.timeout + GRACE_S, item.config)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer() -> Generator[None, object, object]:
    """The test is over, or has failed: its teardown follows."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Set a time limit for the teardown, whether or not the test has failed."""
    if settings := item.stash.get(_settings, None):
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=TEARDOWN_S))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No thread may keep the process alive; pytest-xdist's workers wait for each other, so this process ends them."""
    if not hasattr(session.config, "workerinput"):
        _end_process_in(TEARDOWN_S, session.config)


def _end_process_in(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


def _after_the_tasks(fail: Handler) -> Handler:
    def handler(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no event loop is running
            for task in asyncio.all_tasks():
                sys.stderr.writelines([f"{task.get_name()}:\n", *_stack(task)])
        fail(number, frame)

    return handler


def _stack(task: "asyncio.Task[Any]") -> list[str]:
    """Return the stack down to the awaited object; `Task.get_stack` has only the outermost frame."""
    frames = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaited = awaited.cr_await
    return traceback.StackSummary.extract(iter(frames)).format()
