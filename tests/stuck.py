"""A test that is stuck fails and says where; one that cannot even fail ends its process, and says where, too.

pytest-timeout interrupts a test in its main thread. That does not end one that catches what it is interrupted with, and
of an event loop it shows the loop alone; and the teardown of a test that failed is interrupted by nobody. So each task
says what it waits for, a teardown has a time of its own, and where all that is in vain faulthandler ends the process:
pytest-xdist counts the test as failed, and goes on in a new process.
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
    """Time begins to run: for the test or, anew, for its teardown."""
    item.stash[_settings] = settings
    done = yield
    fail = signal.getsignal(signal.SIGALRM)
    if callable(fail):
        signal.signal(signal.SIGALRM, _after_the_tasks(fail))
    _end_process_in(settings.timeout + GRACE_S, item.config)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer() -> Generator[None, object, object]:
    """The test is over, or has failed: its teardown comes."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Whether the test has failed or not."""
    if settings := item.stash.get(_settings, None):
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=TEARDOWN_S))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No thread keeps the process; the workers of pytest-xdist wait for each other, and are ended by the one here."""
    if not hasattr(session.config, "workerinput"):
        _end_process_in(TEARDOWN_S, session.config)


def _end_process_in(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


def _after_the_tasks(fail: Handler) -> Handler:
    def handler(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no event loop runs
            for task in asyncio.all_tasks():
                sys.stderr.writelines([f"{task.get_name()}:\n", *_stack(task)])
        fail(number, frame)

    return handler


def _stack(task: "asyncio.Task[Any]") -> list[str]:
    """Down to what is awaited; `Task.get_stack` has the outermost frame alone."""
    frames = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaited = awaited.cr_await
    return traceback.StackSummary.extract(iter(frames)).format()
