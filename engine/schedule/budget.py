"""How many tokens an iteration may compute."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.request import Request

if TYPE_CHECKING:
    from engine.record import IterationRecord


class TokenBudget:
    """A fixed number of tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def tokens(self, running: Sequence[Request]) -> int:
        """Most tokens of the next iteration, beside `running`."""
        return self.most

    def observe(self, record: "IterationRecord") -> None:
        """An iteration has been computed."""
