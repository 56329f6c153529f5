"""A request in the hands of the worker that claimed it."""

from dataclasses import dataclass

from orcastream.broker.entry import EntryRef
from orcastream.schemas.limits import ID_PATTERN


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that is mine from now on: its entry, the raw fields, and its deliveries that count, this one included.

    `taken_over`: another worker may have begun with it, though its deliveries were taken back when it was handed over.
    `suspect`: it may have been what ended the worker that had it before; it is to run alone until it brings
    something new.
    """

    ref: EntryRef
    fields: dict[bytes, bytes]
    deliveries: int
    suspect: bool = False
    taken_over: bool = False

    @property
    def request_id(self) -> str | None:
        """The id among its fields; None where that is none."""
        text = self.fields.get(b"id", b"").decode(errors="replace")
        return text if ID_PATTERN.fullmatch(text) else None
