"""Ends a blocking command of another connection."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.link import Link


async def unblock(link: Link, client_id: int, blocked: Callable[[], bool]) -> None:
    """End the blocking command of the connection with this id, over `link`; return once it is not `blocked`.

    The command may reach the server after the first UNBLOCK, hence the repetition. If the server does not allow it,
    the command times out. Raises LinkLost.
    """
    back_off = BackOff(first_s=0.002, most_s=0.1)
    while blocked():
        with suppress(ResponseError):
            await link.call("CLIENT", "UNBLOCK", client_id)
        await asyncio.sleep(back_off.failed())
