"""A list of an answer that is encoded while it comes."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from orcastream.gateway.openai.encoded_json import EncodedList, encoded_items


class GrowingList:
    """Its items are encoded as they come: however long it grows, no step takes longer for it."""

    def __init__(self) -> None:
        self._items = BytesIO()
        """The items without brackets. It is written at its end alone, and what it gives out is copied only if more
        follows."""

    @property
    def size_bytes(self) -> int:
        """Of the items so far, as JSON."""
        return self._items.tell()

    def add(self, items: Sequence[Any]) -> EncodedList:
        """More items; these alone."""
        if not items:
            return EncodedList(())
        part = encoded_items(items)
        if self.size_bytes:
            self._items.write(b",")
        self._items.write(part)
        return EncodedList((part,))

    def so_far(self) -> EncodedList:
        """All items; what is added later is not among them."""
        return EncodedList((self._items.getvalue(),) if self.size_bytes else ())
