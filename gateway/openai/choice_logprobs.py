"""Log probabilities of a choice that is gathered whole."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from orcastream.gateway.openai.encoded_json import EncodedList
from orcastream.gateway.openai.growing_list import GrowingList
from orcastream.gateway.openai.logprobs import TokenLogprob


class ChoiceLogprobs:
    """`logprobs` of a choice, encoded as its tokens arrive: kept as objects, they would need far more memory."""

    def __init__(self, write: Callable[[Sequence[TokenLogprob]], dict[str, Any]]) -> None:
        """`write` returns the field for some tokens; its lists have one item per token, the rest is constant."""
        self._write = write
        self._lists: dict[str, GrowingList] = {}
        self._rest: dict[str, Any] = {}

    @property
    def size_bytes(self) -> int:
        """Size of all list items so far, as JSON."""
        return sum(items.size_bytes for items in self._lists.values())

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        """Add one token or more."""
        for name, value in self._write(tokens).items():
            if isinstance(value, list):
                self._lists.setdefault(name, GrowingList()).add(value)
            else:
                self._rest[name] = value

    def json(self, behind: Self | None = None) -> dict[str, Any] | None:
        """Return the field, each of its lists followed by the items of `behind`; None without own tokens."""
        if not self._lists:
            return None
        more = {} if behind is None else {name: items.so_far().parts for name, items in behind._lists.items()}
        lists = {name: (*items.so_far().parts, *more.get(name, ())) for name, items in self._lists.items()}
        return {name: EncodedList(parts) for name, parts in lists.items()} | self._rest
