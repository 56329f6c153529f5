"""Turns of the event loop while an answer is written."""


class Turns:
    """Tells when to yield to the event loop, each time a given amount was made: much of an answer may be available at
    once, as on a replay or where its choices are ranked.
    """

    def __init__(self, size: int) -> None:
        """`size`: the amount that ends a turn, in the unit of `is_over`."""
        self._size = self._left = size

    def is_over(self, amount: int) -> bool:
        """Count `amount` more; return whether the turn is over, so that the caller yields (`asyncio.sleep(0)`)."""
        self._left -= amount
        if self._left > 0:
            return False
        self._left = self._size
        return True
