"""References to entries of request streams, and the record of a request in its `seen` key."""

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import CLASSES, Keys

_DIGITS: Final = re.compile("[0-9]{1,20}")
"""One half of a stream entry id: 64 bits."""


@total_ordering
@dataclass(frozen=True, slots=True)
class EntryRef:
    """Priority class and stream entry id: `class entry-id` in the `seen` key and in started events.

    Entries are ordered by entry id; ties go to the more urgent class. `lane` is the entry's lane of the queue, which
    follows from the request's id and is not part of the text.
    """

    priority_class: str
    entry_id: str
    lane: int = 0

    def __str__(self) -> str:
        return f"{self.priority_class} {self.entry_id}"

    @classmethod
    def parse(cls, text: str | bytes, lane: int = 0) -> Self:
        """Parse `class entry-id`; raise InvalidRequest if invalid."""
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        priority_class, _, entry_id = shown.partition(" ")
        ms, dash, seq = entry_id.partition("-")
        if priority_class not in CLASSES or not dash or not all(map(_DIGITS.fullmatch, (ms, seq))):
            raise InvalidRequest("entry", text, f"`class entry-id` with a class of {', '.join(CLASSES)}")
        return cls(priority_class, entry_id, lane)

    @classmethod
    def find(cls, text: str | bytes, lane: int = 0) -> Self | None:
        """As `parse`; None if invalid."""
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
    """The value of the `seen` key: the one entry that is the request and, once it has ended, its outcome and tenant.

    `outcome` is `finished` or an error code; `tenant` is set if and only if `outcome` is.
    """

    ref: EntryRef
    outcome: str | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        return f"{self.ref} {self.outcome} {self.tenant}" if self.outcome else str(self.ref)

    @classmethod
    def find(cls, text: str | bytes, lane: int = 0) -> Self | None:
        """Parse `class entry-id` or `class entry-id outcome tenant`; None if neither."""
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        words = shown.split(" ")
        ref = EntryRef.find(" ".join(words[:2]), lane)
        if ref is None or len(words) not in (2, 4) or not all(words):
            return None
        return cls(ref, *words[2:])


LAST_ENTRY_ID: Final = f"{2**64 - 1}-{2**64 - 1}"
"""The greatest id that an entry can have: its producer may have chosen it."""


def after(entry_id: str) -> str:
    """Return the start of a scan after an entry; after the last possible one, which Redis refuses, the first start."""
    return "-" if entry_id == LAST_ENTRY_ID else f"({entry_id}"


def stream_of(keys: Keys, ref: EntryRef) -> str:
    """Return the request stream of an entry."""
    return keys.in_lane(ref.lane).requests(ref.priority_class)
