"""A request that a worker has claimed."""

from dataclasses import dataclass

from orcastream.broker.entry import EntryRef
from orcastream.schemas.limits import ID_PATTERN


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed request: its entry, the raw fields, and its deliveries that count, including this one.

    `taken_over`: another worker may have begun it, even if its deliveries were taken back when it was handed over.
    `suspect`: it may have caused the death of its previous worker, so it must run alone until it makes
    progress.
    """

    ref: EntryRef
    fields: dict[bytes, bytes]
    deliveries: int
    suspect: bool = False
    taken_over: bool = False

    @property
    def request_id(self) -> str | None:
        """The id among its fields; None if it is missing or invalid."""
        text = self.fields.get(b"id", b"").decode(errors="replace")
        return text if ID_PATTERN.fullmatch(text) else None
