"""Follows one reply: its updates, and the periods of silence between them."""

import asyncio
from types import TracebackType
from typing import Self

from orcastream.broker.subscription import Subscription, Update
from orcastream.gateway.errors import ApiError, gateway_stopping

_TURN = 32
"""Updates taken at a time: replaying a long log must not keep all other clients waiting."""
_STOPPED_S = 1.0
"""A timer later than this was held up, because this process was stopped."""
_READING_S = 10.0
"""Time for a process that was stopped to read what was written meanwhile."""


class Following:
    """Reads one subscription, inside `async with`.

    One timer detects silence, however many updates arrive: most streams are never silent.
    """

    def __init__(
        self, subscription: Subscription, ending: asyncio.Event, *, keep_alive_s: float, give_up_at: float
    ) -> None:
        """`ending` is set when the gateway stops; `give_up_at` (loop time) is after the request's deadline."""
        self._subscription = subscription
        self._ending = ending
        self._keep_alive_s = keep_alive_s
        self._give_up_at = give_up_at
        self._is_overdue = False
        self._loop = asyncio.get_running_loop()
        self._quiet_since = self._loop.time()
        """When updates were last asked for or arrived, or their absence was noticed, by the loop's clock."""

    async def __aenter__(self) -> Self:
        self._closing = asyncio.create_task(self._close_at_the_end())
        self._watch_at(self._loop.time() + self._keep_alive_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._closing.cancel()

    async def take(self) -> list[Update]:
        """Return the available updates, waiting for the first; none if `keep_alive_s` passed without one.

        Raises what the subscription raises, and ApiError if the gateway stops or the reply has not ended by
        `give_up_at`: Redis is away, or whoever ends overdue requests has too many of them. Later where this process was
        stopped, or has so many replies to read that it has not come to what this one's log already has.
        """
        self._quiet_since = self._loop.time()  # a client may have taken long to read the last ones
        try:
            updates = await self._subscription.take(_TURN)
        except StopAsyncIteration:
            raise _to_be_continued() from None
        self._quiet_since = self._loop.time()
        if not updates and self._is_overdue and not await self._subscription.lags():
            raise _overdue()
        if len(updates) == _TURN:
            await asyncio.sleep(0)
        return updates

    def _watch_at(self, due_at: float) -> None:
        self._due_at = due_at  # a timer cannot be asked: uvloop makes none for less than half a millisecond
        self._timer = self._loop.call_at(due_at, self._watch)

    def _watch(self) -> None:
        now = self._loop.time()
        if now - self._due_at > _STOPPED_S:
            self._give_up_at = max(self._give_up_at, now + _READING_S)
        due_at = self._quiet_since + self._keep_alive_s
        if due_at <= now:
            self._is_overdue = now > self._give_up_at
            self._subscription.nudge()
            due_at = now + self._keep_alive_s
        self._watch_at(due_at)

    async def _close_at_the_end(self) -> None:
        await self._ending.wait()
        self._subscription.close()


def _overdue() -> ApiError:
    message = "The deadline passed, and it is not known yet how the request ended."
    return ApiError(504, message, kind="server_error", code="expired", headers={"x-should-retry": "false"})


def _to_be_continued() -> ApiError:
    """Return the error of a stopping gateway: the request continues, and any other gateway serves the rest."""
    path = "/v1/requests/{id}/events (its id is in X-Request-Id)"
    return gateway_stopping(
        f"This gateway is stopping; the request continues. Resume with GET {path} and Last-Event-ID."
    )
