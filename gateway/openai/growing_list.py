"""A list in an answer that is encoded as it grows."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from orcastream.gateway.openai.encoded_json import EncodedList, encoded_items


class GrowingList:
    """A list whose items are encoded as they arrive: no step takes longer as it grows."""

    def __init__(self) -> None:
        self._items = BytesIO()
        """The items without brackets. Appended only at the end; an output of it is copied only if more follows."""

    @property
    def size_bytes(self) -> int:
        """Size of the items so far, as JSON."""
        return self._items.tell()

    def add(self, items: Sequence[Any]) -> EncodedList:
        """Add items; return only these, encoded."""
        if not items:
            return EncodedList(())
        part = encoded_items(items)
        if self.size_bytes:
            self._items.write(b",")
        self._items.write(part)
        return EncodedList((part,))

    def so_far(self) -> EncodedList:
        """Return all items; later additions do not change the result."""
        return EncodedList((self._items.getvalue(),) if self.size_bytes else ())
