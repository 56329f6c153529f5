"""Input items of a response: checked, and reduced to what templates take."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, ClassVar, Final, Self

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.messages import MAX_MESSAGES
from orcastream.gateway.openai.prompt import Conversation, ToolUse
from orcastream.gateway.openai.responses.item_kinds import INCOMPLETE, READERS, REFERENCE, user_message
from orcastream.gateway.openai.responses.turns import messages_of
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text

Item = Json
"""`type`, `status` and the fields from READERS for the type; and an `id`, once assigned."""
STATUSES: Final = ("in_progress", "completed", INCOMPLETE)
_ID_PREFIX: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_MAX_ID_LENGTH: Final = 256
_NAMED: Final = re.compile(r"[a-z]+_(.+)_(?:in)?[0-9]+")
"""The id of an item that a response named; see `with_ids`, and `ResponseShape.item_id`."""


@dataclass(frozen=True, slots=True)
class ResponseInput(Conversation):
    """The conversation of a response: `items`, including those of earlier responses, after `instructions`."""

    name: ClassVar[str] = "input"
    items: tuple[Item, ...] = ()
    instructions: str | None = None

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        instructions: str | None,
        template_kwargs: Mapping[str, Any],
        tool_use: ToolUse | None = None,
    ) -> Self:
        """Make the input from checked items."""
        first = [] if instructions is None else [{"role": "system", "content": instructions}]
        messages = [*first, *messages_of(item for item in items if item["type"] != REFERENCE)]
        return cls(messages, template_kwargs, tool_use, items=tuple(items), instructions=instructions)

    def after(self, earlier: Sequence[Item]) -> Self:
        """Return the input as the continuation of a conversation, whose former instructions and tools are dropped."""
        return self.of([*earlier, *self.items], self.instructions, self.template_kwargs, self.tool_use)

    @property
    def references(self) -> list[str]:
        """The ids of items that are only named."""
        return [item["id"] for item in self.items if item["type"] == REFERENCE]

    def resolved(self, known: Mapping[str, Item]) -> Self:
        """Return the input with these items in the places of their references."""
        items = [known[item["id"]] if item["type"] == REFERENCE else item for item in self.items]
        return self.of(items, self.instructions, self.template_kwargs, self.tool_use)

    def place_of_calls(self, number: int) -> str:
        """See Conversation; a message may consist of several items."""
        return self.name

    def with_ids(self, name: str) -> Self:
        """Return the input with unique item ids: an item without an id gets its type's prefix, `name` and its
        number.

        So does an item whose id occurs before, as when a client sends what an earlier response already has.
        """
        given, seen, named = {item.get("id") for item in self.items}, set[str](), list[Item]()
        for number, item in enumerate(self.items):
            item_id = item.get("id")
            if item_id is None or item_id in seen:
                item_id = _new_id(f"{_ID_PREFIX[item['type']]}_{name}{number}", given)
            seen.add(item_id)
            named.append({"id": item_id} | item | {"id": item_id})
        return replace(self, items=tuple(named))


def _new_id(begin: str, given: Container[str | None]) -> str:
    """Return an id that the client has not used."""
    numbered = (f"{begin}_{number}" for number in count(1))
    return next(each for each in chain([begin], numbered) if each not in given)


def response_of(item_id: str) -> str | None:
    """Return the id of the response that named an item; None if none did."""
    named = _NAMED.fullmatch(item_id)
    return None if named is None else f"resp_{named[1]}"


def read_input(value: object) -> list[Item]:
    """Read a user's text, or an array of items.

    Raises InvalidRequest naming the part that is wrong or not supported.
    """
    if isinstance(value, str):
        return [_whole("message", None, user_message(check_text("input", value)))]
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input", value, "text, or an array of at least one item")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest("input", f"{len(value)} items", f"at most {MAX_MESSAGES} items")
    return read_items("input", value)


def read_items(field: str, values: Sequence[object]) -> list[Item]:
    """Read items at that path, such as those of an output. Raises InvalidRequest as `read_input` does."""
    return [_item(f"{field}.{number}", item) for number, item in enumerate(values)]


def _item(field: str, value: object) -> Item:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, f"an object of the type {', '.join(READERS)}")
    kind, status, own_id = value.get("type"), value.get("status"), value.get("id")
    kind = "message" if kind is None else kind
    if not isinstance(kind, str) or kind not in READERS:
        raise InvalidRequest(f"{field}.type", kind, f"{', '.join(READERS)}: other items are not implemented")
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"{field}.status", status, ", ".join(STATUSES))
    item = _whole(kind, status, READERS[kind](field, value))
    if own_id is None:
        return item
    if not isinstance(own_id, str) or not 0 < len(own_id) <= _MAX_ID_LENGTH:
        raise InvalidRequest(f"{field}.id", own_id, f"text of at most {_MAX_ID_LENGTH} characters")
    return {"id": check_text(f"{field}.id", own_id), **item}


def _whole(kind: str, status: str | None, own: Json) -> Item:
    return {"type": kind, "status": status or "completed", **own}
