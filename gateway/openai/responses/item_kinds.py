"""The kinds of input items: checked, and reduced to the fields that are kept."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.known_names import check_names
from orcastream.gateway.openai.responses.text_parts import MESSAGE_PARTS, REASONING_PARTS, RESULT_PARTS, read_texts
from orcastream.gateway.openai.tool_messages import read_arguments, read_call_id, read_function_name
from orcastream.schemas.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant")
PHASES: Final = ("commentary", "final_answer")
REFERENCE: Final = "item_reference"
"""The type of an item that stands for one of a stored response, by its id."""
INCOMPLETE: Final = "incomplete"
"""The status of an item that was cut."""
_OF_ALL: Final = ("type", "id", "status")
_CALL_EXTRAS: Final = frozenset({"async", "caller", "namespace"})
_RESULT_EXTRAS: Final = frozenset({"caller", "name", "namespace"})
_REASONING_EXTRAS: Final = frozenset({"encrypted_content", "summary"})
"""Names that are not implemented: allowed if empty, since clients send outputs back with them."""


def user_message(text: str) -> Json:
    """Return the item for a plain text."""
    return _message("user", [text])


def _read_message(field: str, value: Json) -> Json:
    check_names(field, value, (*_OF_ALL, "role", "content", "phase"))
    role, phase = value.get("role"), value.get("phase")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{field}.role", role, ", ".join(ROLES))
    if phase is not None and phase not in PHASES:
        raise InvalidRequest(f"{field}.phase", phase, ", ".join(PHASES))
    return _message(role, read_texts(f"{field}.content", value.get("content"), MESSAGE_PARTS))


def _read_call(field: str, value: Json) -> Json:
    """Read a call. One that was cut, or cannot be shown, is incomplete, whatever status its client sends, if any."""
    check_names(field, value, (*_OF_ALL, "call_id", "name", "arguments"), _CALL_EXTRAS)
    arguments = value.get("arguments")
    is_cut = read_arguments(f"{field}.arguments", arguments) is None
    call = {
        "call_id": read_call_id(f"{field}.call_id", value.get("call_id")),
        "name": read_function_name(f"{field}.name", value.get("name")),
        "arguments": arguments,
    }
    return {**call, "status": INCOMPLETE} if is_cut else call


def _read_result(field: str, value: Json) -> Json:
    check_names(field, value, (*_OF_ALL, "call_id", "output"), _RESULT_EXTRAS)
    call_id = read_call_id(f"{field}.call_id", value.get("call_id"))
    return {"call_id": call_id, "output": "".join(read_texts(f"{field}.output", value.get("output"), RESULT_PARTS))}


def _read_reasoning(field: str, value: Json) -> Json:
    """Read reasoning; it may come without content, if the client never received it."""
    check_names(field, value, (*_OF_ALL, "content"), _REASONING_EXTRAS)
    content = value.get("content") or []
    texts = read_texts(f"{field}.content", content, REASONING_PARTS) if content else []
    return {"summary": [], "content": [{"type": "reasoning_text", "text": text} for text in texts]}


def _read_reference(field: str, value: Json) -> Json:
    check_names(field, value, ("type", "id"))
    if value.get("id") is None:
        raise InvalidRequest(f"{field}.id", None, "the id of an item")
    return {}


def _message(role: str, texts: Sequence[str]) -> Json:
    if role == "assistant":
        parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    else:
        parts = [{"type": "input_text", "text": text} for text in texts]
    return {"role": role, "content": parts}


READERS: Final[Mapping[str, Callable[[str, Json], Json]]] = MappingProxyType(
    {
        "message": _read_message,
        "reasoning": _read_reasoning,
        "function_call": _read_call,
        "function_call_output": _read_result,
        REFERENCE: _read_reference,
    }
)
"""Readers by item type: from the item's path and value to its own fields.

They raise InvalidRequest naming the defect.
"""
