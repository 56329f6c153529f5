"""Canceling tasks that talk to Redis."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel until they are done: before Python 3.12 a client with a timeout can swallow a cancellation."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
