"""The messages of a chat request, checked and reduced to what a chat template takes."""

from collections.abc import Mapping
from typing import Any, Final

from schemas.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant")
_TEMPLATE_ROLE: Final = {"developer": "system"}
"""OpenAI's newer name; templates know the older one."""
MAX_MESSAGES: Final = 10_000
_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")
_MESSAGE_EXTRAS: Final = frozenset(
    {"annotations", "audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"}
)
_PART_EXTRAS: Final = frozenset({"prompt_cache_breakpoint"})
"""Names of OpenAI's that are not implemented: they may stand there empty, as clients write answers that they got."""


def read_messages(value: object) -> list[dict[str, str]]:
    """`[{"role", "content"}, ...]`; InvalidRequest naming the part that is wrong or not supported."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages", value, "an array of at least one message")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest("messages", f"{len(value)} messages", f"at most {MAX_MESSAGES} messages")
    return [_message(f"messages.{number}", item) for number, item in enumerate(value)]


def _message(field: str, item: object) -> dict[str, str]:
    if not isinstance(item, dict):
        raise InvalidRequest(field, item, "an object with role and content")
    _check_names(field, item, ("role", "content"), _MESSAGE_EXTRAS)
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{field}.role", role, ", ".join(ROLES))
    return {"role": _TEMPLATE_ROLE.get(role, role), "content": _content(f"{field}.content", item.get("content"))}


def _content(field: str, content: object) -> str:
    if isinstance(content, str):
        return check_text(field, content)
    if not isinstance(content, list) or not content:
        raise InvalidRequest(field, content, "text, or an array of text parts")
    return "".join(_part(f"{field}.{number}", part) for number, part in enumerate(content))


def _part(field: str, part: object) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        shown: Any = part.get("type") if isinstance(part, Mapping) else part
        raise InvalidRequest(f"{field}.type", shown, "text: other parts are not implemented")
    _check_names(field, part, ("type", "text"), _PART_EXTRAS)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", text, "text")
    return check_text(f"{field}.text", text)


def _check_names(field: str, item: Mapping[str, Any], own: tuple[str, str], extras: frozenset[str]) -> None:
    for name, value in item.items():
        if name not in own and not (name in extras and value in _EMPTY):
            raise InvalidRequest(f"{field}.{name}", value, f"{' and '.join(own)}; nothing else is implemented")


def check_text(field: str, text: str) -> str:
    """The text itself; InvalidRequest where it holds half a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, text, "UTF-8 text without lone surrogates") from None
    return text
