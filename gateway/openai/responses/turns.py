"""From the items of a conversation to the messages that chat templates take."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from orcastream.gateway.openai.cut_calls import is_cut
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.messages import TEMPLATE_ROLE, Message
from orcastream.gateway.openai.responses.item_kinds import INCOMPLETE
from orcastream.gateway.openai.tool_messages import read_arguments, template_call


class _Said(IntEnum):
    """The last part of an assistant's message so far; parts come in this order."""

    REASONING = 0
    CONTENT = 1
    CALLS = 2


def messages_of(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of checked items: an assistant's reasoning, text and calls in one turn form one message.

    A call that was cut does not end the turn: text may follow.
    """
    messages: list[Message] = []
    last: _Said | None = None
    for item in items:
        said = _said(item)
        if said is None:
            messages.append(_of_others(item))
        else:
            if last is None or not (said > last or said is last is _Said.CALLS):
                messages.append({"role": "assistant", "content": ""})
            _add(messages[-1], said, item)
            if said is _Said.CALLS and is_cut(messages[-1]["tool_calls"][-1]):
                said = _Said.REASONING if last is None else last
        last = said
    return messages


def _said(item: Mapping[str, Any]) -> _Said | None:
    """Return the part that an assistant's item is; None for items of others."""
    if item["type"] == "reasoning":
        return _Said.REASONING
    if item["type"] == "function_call":
        return _Said.CALLS
    return _Said.CONTENT if item.get("role") == "assistant" else None


def _add(message: Message, said: _Said, item: Mapping[str, Any]) -> None:
    if said is _Said.CALLS:
        message.setdefault("tool_calls", []).append(_call(item))
    elif said is _Said.CONTENT:
        message["content"] = _text(item)
    elif text := _text(item):
        message["reasoning_content"] = text


def _of_others(item: Mapping[str, Any]) -> Message:
    if item["type"] == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    role: str = item["role"]
    return {"role": TEMPLATE_ROLE.get(role, role), "content": _text(item)}


def _call(item: Mapping[str, Any]) -> Json:
    arguments = None if item["status"] == INCOMPLETE else read_arguments("arguments", item["arguments"])
    return template_call(item["call_id"], item["name"], arguments)


def _text(item: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])
