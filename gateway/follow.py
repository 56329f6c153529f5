"""Follows one reply: its updates, and the moments of silence between them."""

import asyncio
from collections.abc import AsyncGenerator

from broker.reader import Subscription, Update
from gateway.errors import ApiError, unavailable


async def follow(
    subscription: Subscription, ending: asyncio.Event, *, keep_alive_s: float, give_up_at: float
) -> AsyncGenerator[Update | None]:
    """Updates up to the terminal one, and None whenever `keep_alive_s` passed without one.

    Raises what the subscription raises, and ApiError when the gateway stops (`ending`) or when nothing ends the reply
    by `give_up_at` (loop time), which is after its deadline: then not even Redis can be asked.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.ensure_future(ending.wait())
    following: asyncio.Future[Update] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(subscription))
            await asyncio.wait((following, stopping), timeout=keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                try:
                    update = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield update
                if update.terminal is not None:
                    return
            elif stopping.done():
                raise gateway_stopping()
            elif loop.time() > give_up_at:
                raise ApiError(
                    504, "The deadline passed, and Redis cannot be asked.", kind="server_error", code="expired"
                )
            else:
                yield None
    finally:
        stopping.cancel()
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def gateway_stopping() -> ApiError:
    """This gateway stops; the request goes on, and any other gateway serves the rest."""
    return unavailable(
        "This gateway is stopping; the request goes on. Continue with GET /v1/requests/{id}/events and Last-Event-ID.",
        "gateway_stopping",
    )
