"""Log probabilities of a choice that is gathered whole."""

from collections.abc import Callable

from orcastream.gateway.openai.endpoint import Json, Logprobs
from orcastream.gateway.openai.growing_list import GrowingList


class ChoiceLogprobs:
    """`logprobs` of a choice, encoded as its tokens come, since they may be many."""

    def __init__(self, write: Callable[[Logprobs], Json]) -> None:
        """`write`: the field as it is for some tokens; its lists have items for each of them, the rest is constant."""
        self._write = write
        self._lists: dict[str, GrowingList] = {}
        self._rest: Json = {}

    def add(self, tokens: Logprobs) -> None:
        """More of them, one token or more."""
        for name, value in self._write(tokens).items():
            if isinstance(value, list):
                self._lists.setdefault(name, GrowingList()).add(value)
            else:
                self._rest[name] = value

    def json(self) -> Json | None:
        """The field; None where there are none."""
        if not self._lists:
            return None
        return {name: items.so_far() for name, items in self._lists.items()} | self._rest
