"""Work in threads, also where the host refuses threads."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orcastream.broker.aside import aside


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_work_runs_in_a_thread() -> None:
    assert await aside(threading.current_thread) is not threading.current_thread()


async def test_an_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await aside(lambda: 1 // 0)


async def test_without_a_thread_work_runs_here_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    with ThreadPoolExecutor(1) as threads:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert await aside(lambda: ran.append("first") or "result", threads) == "result"
        await aside(lambda: ran.append("second"), threads)  # its thread first finds what was left in the queue
    assert ran == ["first", "second"]


async def test_work_that_nobody_waits_for_any_more_does_not_begin() -> None:
    ran: list[str] = []
    busy, free = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        first = asyncio.create_task(aside(lambda: (busy.set(), free.wait()), threads))
        await asyncio.to_thread(busy.wait)
        second = asyncio.create_task(aside(lambda: ran.append("second"), threads))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        free.set()
        await first
    assert ran == []
