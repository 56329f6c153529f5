"""The prompt of a request, as the client sent it."""

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
    """Token ids, as received: they are checked with the payload."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools in the form of templates, and the calls that an answer may have; `followed`: it must follow them."""

    tools: Sequence[dict[str, Any]]
    calls: Calls
    followed: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a chat, for the model's own template."""

    messages: Sequence[dict[str, Any]]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Additional variables of the template."""
    tool_use: ToolUse | None = None
    """The tools that the answer may call."""
    name: ClassVar[str] = "messages"
    """The client's name of the messages."""

    def place_of_calls(self, number: int) -> str:
        """Return the client's name of the calls in message `number`."""
        return f"{self.name}.{number}.tool_calls"


Prompt = Text | TokenIds | Conversation
