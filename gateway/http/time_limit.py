"""The time that a client has for what it owes."""

import asyncio
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.001


class TimeLimit:
    """Calls a function when a time is over, unless it is lifted before; at most one time runs at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether a time is running."""
        return self._timer is not None

    def set(self, timeout_s: float, late: Callable[[], None]) -> None:
        """Call `late` after `timeout_s`, instead of what was to be called."""
        self.lift()
        self._timer = self._loop.call_later(timeout_s, self._look_again, late)

    def lift(self) -> None:
        """Call nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self, late: Callable[[], None]) -> None:
        """Let what arrived while the event loop was blocked be read before calling anybody late."""
        self._timer = self._loop.call_later(_LOOK_S, self._end, late)

    def _end(self, late: Callable[[], None]) -> None:
        self._timer = None
        late()
