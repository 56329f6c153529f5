"""How a gateway stops: first it takes nothing new, then open streams end, and who waits for Redis waits no longer."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Stopping(Exception):
    """The gateway stopped before what was waited for had come."""


class _Wait:
    """A task that waits for something that may not come in time."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self.task = task
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        self.task.cancel()


class Shutdown:
    """Shared by all that has to know."""

    def __init__(self) -> None:
        self.stopping = False
        """No new requests are taken."""
        self.ending = asyncio.Event()
        """Set when open streams are to end."""
        self._waits: set[_Wait] = set()

    def begin(self, grace_s: float) -> None:
        """Take nothing new; open streams get `grace_s` to end by themselves."""
        self.stopping = True
        asyncio.get_running_loop().call_later(grace_s, self._end)

    def end_now(self) -> None:
        """Both at once."""
        self.stopping = True
        self._end()

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """What is awaited inside is awaited until open streams are to end, and no longer: then Stopping is raised."""
        task = asyncio.current_task()
        if self.ending.is_set() or task is None:
            raise Stopping
        wait, before = _Wait(task), task.cancelling()
        self._waits.add(wait)
        try:
            yield
        except asyncio.CancelledError:
            if wait.is_cut and task.cancelling() <= before + 1:  # nobody else has cancelled it
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
