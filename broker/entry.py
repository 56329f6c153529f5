"""Names one entry of a request stream, and what is remembered of the request that it was."""

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import CLASSES, Keys

_DIGITS: Final = re.compile("[0-9]{1,20}")
"""Of one half of a stream entry's id: 64 bits."""


@total_ordering
@dataclass(frozen=True, slots=True)
class EntryRef:
    """Priority class and stream entry id: `class entry-id` in the `seen` key and in started events.

    Of two, the one with the smaller entry id is the earlier; ties go to the more urgent class. `lane` is the part of
    the queue that it stands in, which follows from the request's id and is not said.
    """

    priority_class: str
    entry_id: str
    lane: int = 0

    def __str__(self) -> str:
        return f"{self.priority_class} {self.entry_id}"

    @classmethod
    def parse(cls, text: str | bytes, lane: int = 0) -> Self:
        """From `class entry-id`; InvalidRequest when it is none."""
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        priority_class, _, entry_id = shown.partition(" ")
        ms, dash, seq = entry_id.partition("-")
        if priority_class not in CLASSES or not dash or not all(map(_DIGITS.fullmatch, (ms, seq))):
            raise InvalidRequest("entry", text, f"`class entry-id` with a class of {', '.join(CLASSES)}")
        return cls(priority_class, entry_id, lane)

    @classmethod
    def find(cls, text: str | bytes, lane: int = 0) -> Self | None:
        """As `parse`; None when it is none."""
        try:
            return cls.parse(text, lane)
        except InvalidRequest:
            return None

    @property
    def order(self) -> tuple[int, int, int]:
        """Milliseconds, sequence number and rank of the class."""
        ms, _, seq = self.entry_id.partition("-")
        return int(ms), int(seq), CLASSES.index(self.priority_class)

    def __lt__(self, other: "EntryRef") -> bool:
        return self.order < other.order


@dataclass(frozen=True, slots=True)
class Mark:
    """What the `seen` key says: the one entry that is the request and, once it has ended, how, and whose it was.

    `outcome` is `finished` or the code of an error; with it, and only then, there is a `tenant`.
    """

    ref: EntryRef
    outcome: str | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        return f"{self.ref} {self.outcome} {self.tenant}" if self.outcome else str(self.ref)

    @classmethod
    def find(cls, text: str | bytes, lane: int = 0) -> Self | None:
        """From `class entry-id` or `class entry-id outcome tenant`; None when it is neither."""
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        words = shown.split(" ")
        ref = EntryRef.find(" ".join(words[:2]), lane)
        if ref is None or len(words) not in (2, 4) or not all(words):
            return None
        return cls(ref, *words[2:])


def stream_of(keys: Keys, ref: EntryRef) -> str:
    """The request stream that an entry stands in."""
    return keys.in_lane(ref.lane).requests(ref.priority_class)
