"""Turns of the event loop while an answer is written."""

import asyncio


class Turns:
    """Yields to the event loop each time a given amount was made: much of an answer may be available at once, as on
    a replay or where its choices are ranked.
    """

    def __init__(self, size: int) -> None:
        """`size`: the amount that ends a turn, in the unit of `made`."""
        self._size = self._left = size

    async def made(self, amount: int) -> None:
        """Count `amount` more; yield if the turn is over."""
        self._left -= amount
        if self._left <= 0:
            self._left = self._size
            await asyncio.sleep(0)
