"""Waits for a change, as long as a link holds."""

import asyncio

from orcastream.broker.link import Link


async def change_or_loss(changed: asyncio.Event, link: Link, timeout_s: float | None = None) -> None:
    """Return once `changed` is set, `link` is lost, or the time is over."""
    waiting = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(link.wait_lost())]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiting:
            waiter.cancel()
