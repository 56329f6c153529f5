"""Runs work in a thread, so that it does not block the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final, TypeVar

Result = TypeVar("Result")

_INLINE_BYTES: Final = 64 * 1024
_THREADS: Final = ThreadPoolExecutor(thread_name_prefix="aside")
"""Not the event loop's own, which needs another thread to end them."""


async def aside(work: Callable[[], Result], threads: Executor = _THREADS) -> Result:
    """Return the result of `work`, run in one of `threads`.

    If the host refuses another thread, `work` runs at once on the event loop: a pause harms less than a failure.
    """
    result: Future[Result] = Future()
    begun = threading.Lock()

    def run() -> None:
        if not begun.acquire(blocking=False) or not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(threads, run)
    except RuntimeError:  # `run` stays in the executor's queue, for a thread that exists or starts later
        run()
    return await asyncio.wrap_future(result)


async def read_aside(read: Callable[[], Result], size_bytes: int) -> Result:
    """Return the result of `read` on `size_bytes`: inline if they are few, in a thread if they are many."""
    return read() if size_bytes <= _INLINE_BYTES else await aside(read)
