"""A request that a worker has claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from orcastream.broker.entry import EntryRef
from orcastream.broker.resp import fields_of
from orcastream.schemas.codec import first_repeated
from orcastream.schemas.limits import ID_PATTERN


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed request: its entry, the raw fields, and its deliveries that count, including this one.

    `taken_over`: another worker may have begun it, even if its deliveries were taken back when it was handed over.
    `suspect`: it may have caused the deaths of its previous workers, so it must run alone until it makes
    progress. `repeated`: a field that its entry names more than once, of which `fields` has the last value.
    """

    ref: EntryRef
    fields: dict[bytes, bytes]
    deliveries: int
    suspect: bool = False
    taken_over: bool = False
    repeated: bytes | None = None

    @classmethod
    def of(
        cls, ref: EntryRef, flat: Sequence[bytes], deliveries: int, *, suspect: bool = False, taken_over: bool = False
    ) -> Self:
        """Return the claim of an entry as Redis returned it."""
        fields, repeated = fields_of(flat), None
        if 2 * len(fields) < len(flat):
            repeated, _ = first_repeated(list(zip(flat[::2], flat[1::2], strict=True)))
        return cls(ref, fields, deliveries, suspect, taken_over, repeated)

    @property
    def request_id(self) -> str | None:
        """The id among its fields; None if it is missing or invalid."""
        text = self.fields.get(b"id", b"").decode(errors="replace")
        return text if ID_PATTERN.fullmatch(text) else None
