"""The prompt of a request, as a client gave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orcastream.text.tools.grammar import Calls


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
