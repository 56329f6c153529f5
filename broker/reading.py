"""Reading what may be large without holding the event loop up."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

_INLINE_BYTES: Final = 64 * 1024


async def read_aside(read: Callable[[], Result], size_bytes: int) -> Result:
    """What `read` makes of `size_bytes`: at once where there are few, in a thread where there are many."""
    return read() if size_bytes <= _INLINE_BYTES else await asyncio.to_thread(read)
