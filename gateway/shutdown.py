"""How a gateway stops: it accepts nothing new, then open streams end and waits for Redis are cut short."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Stopping(Exception):
    """The gateway stopped before the awaited result came."""


class _Wait:
    """A task that waits for a result that may not come in time."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self.task = task
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        self.task.cancel()


class Shutdown:
    """The state of stopping, shared by all parts that need it."""

    def __init__(self) -> None:
        self.stopping = False
        """Whether new requests are refused."""
        self.ending = asyncio.Event()
        """Set when open streams must end."""
        self._waits: set[_Wait] = set()

    def begin(self, grace_s: float) -> None:
        """Accept nothing new; open streams get `grace_s` to end."""
        self.stopping = True
        asyncio.get_running_loop().call_later(grace_s, self._end)

    def end_now(self) -> None:
        """Accept nothing new and end open streams now."""
        self.stopping = True
        self._end()

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """Bound the waits inside: once open streams must end, they are cut short and Stopping is raised."""
        task = asyncio.current_task()
        if self.ending.is_set() or task is None:
            raise Stopping
        wait, before = _Wait(task), task.cancelling()
        self._waits.add(wait)
        try:
            yield
        except asyncio.CancelledError:
            if wait.is_cut and task.cancelling() <= before + 1:  # nobody else has canceled it
                raise Stopping from None
            raise
        finally:
            self._waits.discard(wait)
            if wait.is_cut:
                task.uncancel()

    def _end(self) -> None:
        self.ending.set()
        for wait in self._waits:
            wait.cut()
