"""Log probabilities of a choice that is gathered whole."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from orcastream.gateway.openai.encoded_json import EncodedList
from orcastream.gateway.openai.growing_list import GrowingList
from orcastream.gateway.openai.logprobs import TokenLogprob


class ChoiceLogprobs:
    """`logprobs` of a choice, encoded as its tokens come: many, as objects, would need far more memory."""

    def __init__(self, write: Callable[[Sequence[TokenLogprob]], dict[str, Any]]) -> None:
        """`write`: the field as it is for some tokens; its lists have items for each of them, the rest is constant."""
        self._write = write
        self._lists: dict[str, GrowingList] = {}
        self._rest: dict[str, Any] = {}

    @property
    def size_bytes(self) -> int:
        """Of the items of all lists so far, as JSON."""
        return sum(items.size_bytes for items in self._lists.values())

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        """More of them, one token or more."""
        for name, value in self._write(tokens).items():
            if isinstance(value, list):
                self._lists.setdefault(name, GrowingList()).add(value)
            else:
                self._rest[name] = value

    def json(self, behind: Self | None = None) -> dict[str, Any] | None:
        """The field, in each of its lists the items of `behind` after its own; None where there are none of its own."""
        if not self._lists:
            return None
        more = {} if behind is None else {name: items.so_far().parts for name, items in behind._lists.items()}
        lists = {name: (*items.so_far().parts, *more.get(name, ())) for name, items in self._lists.items()}
        return {name: EncodedList(parts) for name, parts in lists.items()} | self._rest
