"""Turns of the event loop while an answer is written."""

import asyncio


class Turns:
    """Lets others run each time that so much has been made: much of an answer may be there at once, as when it is read
    again, or where its choices are ranked."""

    def __init__(self, size: int) -> None:
        """`size`: how much ends a turn, in what `made` counts."""
        self._size = self._left = size

    async def made(self, amount: int) -> None:
        """So much more has been made."""
        self._left -= amount
        if self._left <= 0:
            self._left = self._size
            await asyncio.sleep(0)
