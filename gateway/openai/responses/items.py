"""Input items of a response: checked, and reduced to what templates take."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, ClassVar, Final, Self

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.messages import MAX_MESSAGES
from orcastream.gateway.openai.prompt import Conversation, ToolUse
from orcastream.gateway.openai.responses.item_kinds import INCOMPLETE, READERS, user_message
from orcastream.gateway.openai.responses.turns import messages_of
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text

Item = Json
"""`type`, `status` and what READERS give for the type; and an `id`, once it has one."""
STATUSES: Final = ("in_progress", "completed", INCOMPLETE)
_ID_PREFIX: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_MAX_ID_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class ResponseInput(Conversation):
    """The conversation that a response is asked for: `items`, of earlier responses, too, and `instructions` first."""

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
        """From checked items."""
        first = [] if instructions is None else [{"role": "system", "content": instructions}]
        messages = [*first, *messages_of(items)]
        return cls(messages, template_kwargs, tool_use, items=tuple(items), instructions=instructions)

    def after(self, earlier: Sequence[Item]) -> Self:
        """The same as the rest of a conversation that has begun; its former instructions and tools count no more."""
        return self.of([*earlier, *self.items], self.instructions, self.template_kwargs, self.tool_use)

    def place_of_calls(self, number: int) -> str:
        """See Conversation; a message is of several items."""
        return self.name

    def with_ids(self, name: str) -> Self:
        """The same, no two items with one id: of its type's prefix, `name` and its number where an item has none.

        So, too, where an item before has its id, as where a client sends what an earlier response has kept already.
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
    """One that a client has not given."""
    numbered = (f"{begin}_{number}" for number in count(1))
    return next(each for each in chain([begin], numbered) if each not in given)


def read_input(value: object) -> list[Item]:
    """One user's text, or an array of items; InvalidRequest naming the part that is wrong or not supported."""
    if isinstance(value, str):
        return [_whole("message", None, user_message(check_text("input", value)))]
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input", value, "text, or an array of at least one item")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest("input", f"{len(value)} items", f"at most {MAX_MESSAGES} items")
    return read_items("input", value)


def read_items(field: str, values: Sequence[object]) -> list[Item]:
    """Items at that place, such as those of an output; InvalidRequest as `read_input`."""
    return [_item(f"{field}.{number}", item) for number, item in enumerate(values)]


def _item(field: str, value: object) -> Item:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, f"an object of the type {', '.join(READERS)}")
    kind, status, own_id = value.get("type", "message"), value.get("status"), value.get("id")
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
