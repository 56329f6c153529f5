"""Truncated tool calls in a conversation: they cannot be executed, and no template can render them."""

from collections.abc import Mapping, Sequence
from typing import Any

from orcastream.gateway.openai.endpoint import Json


def is_cut(call: Mapping[str, Any]) -> bool:
    """Whether a call in the form of `template_call` was cut."""
    return call["function"]["arguments"] is None


def without_cut_calls(messages: Sequence[Json]) -> list[Json]:
    """Return the messages to render: without calls that were cut, and without their results.

    A message with nothing else is left out entirely, including its reasoning.
    """
    shown: list[Json] = []
    cut_ids: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls", [])
        whole = [call for call in calls if not is_cut(call)]
        cut_ids = (cut_ids | _ids(calls)) - _ids(whole)
        if len(whole) < len(calls):
            message = _with_calls(message, whole)
            if not (whole or message["content"]):
                continue
        if message["role"] != "tool" or message["tool_call_id"] not in cut_ids:
            shown.append(message)
    return shown


def _ids(calls: Sequence[Json]) -> set[str]:
    return {call["id"] for call in calls}


def _with_calls(message: Json, calls: list[Json]) -> Json:
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "tool_calls": calls} if calls else rest
