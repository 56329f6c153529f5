"""The `logprobs` of one choice, encoded as they come."""

from collections.abc import Mapping, Sequence
from typing import Any

from orcastream.gateway.openai.encoded_json import EncodedList, encoded_items


class EncodedLogprobs:
    """An object of lists, each of which gets more items with each event; as objects they would need far more memory."""

    def __init__(self) -> None:
        self.size_bytes = 0
        """Of all items, as JSON."""
        self._lists: dict[str, list[bytes]] = {}

    def add(self, lists: Mapping[str, Sequence[Any]]) -> None:
        """More items of each list, at least one."""
        for name, items in lists.items():
            part = encoded_items(items)
            self._lists.setdefault(name, []).append(part)
            self.size_bytes += len(part)

    def lists(self, behind: "EncodedLogprobs | None" = None) -> dict[str, EncodedList]:
        """The lists, and in each the items of `behind` after its own; none before there are items."""
        more = {} if behind is None else behind._lists
        return {name: EncodedList([*parts, *more.get(name, ())]) for name, parts in self._lists.items()}
