"""How far a client has come in a reply: the `id:` of an event, which comes back as Last-Event-ID."""

import re
from dataclasses import dataclass
from typing import Self

from orcastream.broker.resume import ResumePoint
from orcastream.schemas.errors import InvalidRequest

_ENDS = re.compile(r"[1-9]\d?")


@dataclass(frozen=True, slots=True)
class Delivered:
    """The tokens whose text was delivered, and of how many choices, the first ones, the end was.

    Only where the end itself brought text, a character that never became whole, does the id tell of it.
    """

    tokens: ResumePoint
    num_ends: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `17,12-9f3a0c1d`, or with ends `17,12-9f3a0c1d.1`; InvalidRequest when it is neither."""
        tokens, dot, ends = text.partition(".")
        if dot and not _ENDS.fullmatch(ends):
            raise InvalidRequest("Last-Event-ID", text, "the `id:` of an event, as it was sent")
        return cls(ResumePoint.parse(tokens), int(ends) if dot else 0)

    def __str__(self) -> str:
        return f"{self.tokens}.{self.num_ends}" if self.num_ends else str(self.tokens)
