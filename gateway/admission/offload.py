"""Parses and tokenizes bodies outside the event loop: large ones apart from small ones, few at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from orcastream.broker.aside import aside

Result = TypeVar("Result")

_INLINE_BYTES: Final = 4 * 1024
_LARGE_BYTES: Final = 256 * 1024
_MEDIUM_AT_ONCE: Final = 4
_LARGE_AT_ONCE: Final = 1
"""A tokenizer takes hundreds of bytes of memory per character, and all its threads for one text."""


class Offload:
    """Runs work on bodies: inline for a small one, in a thread for a larger one, in order of arrival.

    Large bodies wait for each other; smaller ones never wait for them.
    """

    def __init__(self) -> None:
        self._medium = ThreadPoolExecutor(_MEDIUM_AT_ONCE, "body")
        self._large = ThreadPoolExecutor(_LARGE_AT_ONCE, "large-body")

    async def run(self, size_bytes: int, action: Callable[[], Result]) -> Result:
        """Return the result of `action`, which takes time in proportion to `size_bytes`."""
        if size_bytes <= _INLINE_BYTES:
            return action()
        threads = self._medium if size_bytes <= _LARGE_BYTES else self._large
        return await aside(action, threads)

    def close(self) -> None:
        """Start nothing more; running actions finish."""
        for threads in (self._medium, self._large):
            threads.shutdown(wait=False, cancel_futures=True)
