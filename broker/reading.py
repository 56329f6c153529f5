"""Reads potentially large data without blocking the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

_INLINE_BYTES: Final = 64 * 1024


async def read_aside(read: Callable[[], Result], size_bytes: int) -> Result:
    """Return the result of `read` on `size_bytes`: inline if they are few, in a thread if they are many."""
    return read() if size_bytes <= _INLINE_BYTES else await asyncio.to_thread(read)
