"""A client's position in a reply: the `id:` of an event, which it sends back as Last-Event-ID."""

import re
from dataclasses import dataclass
from typing import Self

from orcastream.broker.resume import ResumePoint
from orcastream.schemas.errors import InvalidRequest

_ENDS = re.compile(r"[1-9]\d?")


@dataclass(frozen=True, slots=True)
class Delivered:
    """The tokens whose text was delivered, and the number of choices, from the first, whose end was delivered.

    The id contains ends only where an end itself added text: a character that was never completed.
    """

    tokens: ResumePoint
    num_ends: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `17,12-9f3a0c1d`, or with ends `17,12-9f3a0c1d.1`. Raises InvalidRequest otherwise."""
        tokens, dot, ends = text.partition(".")
        if dot and not _ENDS.fullmatch(ends):
            raise InvalidRequest("Last-Event-ID", text, "the `id:` of an event, as it was sent")
        return cls(ResumePoint.parse(tokens), int(ends) if dot else 0)

    def __str__(self) -> str:
        return f"{self.tokens}.{self.num_ends}" if self.num_ends else str(self.tokens)
