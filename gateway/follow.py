"""Follows one reply: its updates, and the moments of silence between them."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import count

from broker.subscription import Subscription, Update
from gateway.errors import ApiError, unavailable

_TURN = 32
"""Updates that are taken in one go: a long log that is read again must not keep all other clients waiting."""


async def follow(
    subscription: Subscription, ending: asyncio.Event, *, keep_alive_s: float, give_up_at: float
) -> AsyncGenerator[Update | None]:
    """Updates up to the terminal one, and None whenever `keep_alive_s` passed without one.

    Raises what the subscription raises, and ApiError when the gateway stops (`ending`) or when nothing ends the reply
    by `give_up_at` (loop time), which is after its deadline: then not even Redis can be asked.
    """
    loop = asyncio.get_running_loop()
    closing = asyncio.create_task(_close_at(ending, subscription))
    try:
        for number in count(1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            try:
                update = await subscription.next_within(keep_alive_s)
            except StopAsyncIteration:
                raise gateway_stopping() from None
            if update is None and loop.time() > give_up_at:
                raise _overdue()
            yield update
            if update is not None and update.terminal is not None:
                return
    finally:
        closing.cancel()


async def _close_at(ending: asyncio.Event, subscription: Subscription) -> None:
    await ending.wait()
    subscription.close()


def _overdue() -> ApiError:
    message = "The deadline passed, and Redis cannot be asked how the request ended."
    return ApiError(504, message, kind="server_error", code="expired", headers={"x-should-retry": "false"})


def gateway_stopping() -> ApiError:
    """This gateway stops; the request goes on, and any other gateway serves the rest."""
    path = "/v1/requests/{id}/events (its id is in X-Request-Id)"
    message = f"This gateway is stopping; the request goes on. Continue with GET {path} and Last-Event-ID."
    return unavailable(message, "gateway_stopping")
