"""The prompt of a request, as a client gave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text
from orcastream.text.tools.grammar import Calls

MAX_VALUE_DEPTH: Final = 64
"""Of maps and arrays in tools, and in the arguments of calls that a model is shown."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text to be tokenized."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, as they came: what they are is checked with the payload."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools as templates take them, and the calls that an answer may have; `followed`: that it has to keep to them."""

    tools: Sequence[dict[str, Any]]
    calls: Calls
    followed: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a chat, for the model's own template."""

    messages: Sequence[dict[str, Any]]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template that are set besides."""
    tool_use: ToolUse | None = None
    """The tools that the answer may call."""
    name: ClassVar[str] = "messages"
    """What its client calls the messages."""

    def place_of_calls(self, number: int) -> str:
        """What its client calls the calls in the message of that number."""
        return f"{self.name}.{number}.tool_calls"


Prompt = Text | TokenIds | Conversation


def check_value(field: str, value: object, depth: int = MAX_VALUE_DEPTH) -> None:
    """InvalidRequest where a text in a JSON value, names among them, is none, or where it is nested too deeply."""
    if isinstance(value, str):
        check_text(field, value)
    elif isinstance(value, Mapping | list) and not depth:
        raise InvalidRequest(field, value, f"at most {MAX_VALUE_DEPTH} maps and arrays inside each other")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            check_value(f"{field}.{check_text(field, name)}", inner, depth - 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check_value(f"{field}.{number}", inner, depth - 1)
