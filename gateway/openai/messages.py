"""The messages of a chat request, checked and reduced to what a chat template takes."""

from collections.abc import Mapping
from typing import Any, Final

from orcastream.gateway.openai.cache_marks import without_cache_marks
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.known_names import check_names
from orcastream.gateway.openai.tool_messages import MAX_CALLS, call_schema, read_call_id, read_calls
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
TEMPLATE_ROLE: Final = {"developer": "system"}
"""OpenAI's newer name; templates know the older one."""
Message = dict[str, Any]
MAX_MESSAGES: Final = 10_000
MAX_NAME_LENGTH: Final = 256
_OWN: Final = ("role", "content", "name")
_OWN_OF_ROLE: Final[Mapping[str, tuple[str, ...]]] = {
    "assistant": (*_OWN, "tool_calls", "reasoning_content", "reasoning", "parsed", "provider_specific_fields"),
    "tool": (*_OWN, "tool_call_id"),
}
"""Names by role; clients add `parsed` and litellm's `provider_specific_fields` to answers that they send back."""
_MESSAGE_EXTRAS: Final = frozenset(
    {
        "annotations",
        "audio",
        "function_call",
        "parsed",
        "reasoning",
        "reasoning_content",
        "refusal",
        "tool_call_id",
        "tool_calls",
    }
)
"""Names that are not implemented, or not for a role: allowed if empty, since clients send answers back with them."""


def read_messages(value: object) -> list[Message]:
    """Read `[{"role", "content"}, ...]`. Raises InvalidRequest naming the part that is wrong or not supported."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages", value, "an array of at least one message")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest("messages", f"{len(value)} messages", f"at most {MAX_MESSAGES} messages")
    return [_message(f"messages.{number}", item) for number, item in enumerate(value)]


def message_schema() -> Json:
    """Return the JSON schema of one message."""
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    content = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": part}]}
    said = {"anyOf": [*content["anyOf"], {"type": "null"}], "description": "Null only with calls."}
    text = {"type": ["string", "null"]}
    variants = [
        ({"role": {"enum": ["system", "developer", "user"]}, "content": content}, ["role", "content"]),
        (
            {
                "role": {"const": "assistant"},
                "content": said,
                "tool_calls": {"type": ["array", "null"], "maxItems": MAX_CALLS, "items": call_schema()},
                "reasoning_content": {**text, "description": "The model's reasoning, for templates that read it."},
            },
            ["role"],
        ),
        (
            {"role": {"const": "tool"}, "content": content, "tool_call_id": {"type": "string", "minLength": 1}},
            ["role", "content", "tool_call_id"],
        ),
    ]
    return {
        "oneOf": [
            {"type": "object", "properties": {**properties, "name": text}, "required": required}
            for properties, required in variants
        ]
    }


def _message(field: str, item: object) -> Message:
    if not isinstance(item, dict):
        raise InvalidRequest(field, item, "an object with role and content")
    role = item.get("role")
    own = _OWN_OF_ROLE.get(role, _OWN) if isinstance(role, str) else _OWN
    check_names(field, without_cache_marks(field, item), own, _MESSAGE_EXTRAS)
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{field}.role", role, ", ".join(ROLES))
    message: Message = {"role": TEMPLATE_ROLE.get(role, role)}
    if role == "tool":
        message["tool_call_id"] = read_call_id(f"{field}.tool_call_id", item.get("tool_call_id"))
    if role == "assistant":
        message |= _of_assistant(field, item)
    has_calls = "tool_calls" in message
    message["content"] = _content(f"{field}.content", item.get("content"), may_be_empty=has_calls)
    name = item.get("name")
    return message if name is None else {**message, "name": _name(f"{field}.name", name)}


def _of_assistant(field: str, item: Mapping[str, Any]) -> Message:
    """Return an answer's fields in addition to its content: calls, and reasoning under one of two names."""
    own: Message = {}
    if calls := item.get("tool_calls"):
        own["tool_calls"] = read_calls(f"{field}.tool_calls", calls)
    for name in ("reasoning", "reasoning_content"):
        if reasoning := item.get(name):
            if not isinstance(reasoning, str):
                raise InvalidRequest(f"{field}.{name}", reasoning, "text")
            own["reasoning_content"] = check_text(f"{field}.{name}", reasoning)
    return own


def _name(field: str, name: object) -> str:
    """Return the name of the speaker within the role, for templates that render it."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
        raise InvalidRequest(field, name, f"text of at most {MAX_NAME_LENGTH} characters")
    return check_text(field, name)


def _content(field: str, content: object, *, may_be_empty: bool) -> str:
    if may_be_empty and content in (None, []):
        return ""
    if isinstance(content, str):
        return check_text(field, content)
    if not isinstance(content, list) or not content:
        raise InvalidRequest(field, content, "text, or an array of text parts")
    return "".join(_part(f"{field}.{number}", part) for number, part in enumerate(content))


def _part(field: str, part: object) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        shown: Any = part.get("type") if isinstance(part, Mapping) else part
        raise InvalidRequest(f"{field}.type", shown, "text: other parts are not implemented")
    check_names(field, without_cache_marks(field, part), ("type", "text"))
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", text, "text")
    return check_text(f"{field}.text", text)
