"""What the text of an answer contains in addition to content: reasoning, and tool calls in some format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from orcastream.text.tools.formats import TOOL_FORMATS, ToolFormat


class Thinking(StrEnum):
    """Where a model's reasoning begins."""

    NONE = ""
    MAY_COME = "think"
    """The answer may begin it."""
    OPEN = "thinking"
    """The prompt has begun it."""


_THINKING: Final[Mapping[str, Thinking]] = MappingProxyType({str(each): each for each in Thinking if each})


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How to parse one answer. A plain one is only content."""

    thinking: Thinking = Thinking.NONE
    calls: ToolFormat | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a format such as `think+hermes`, as it travels with a request; one with an unknown name is plain."""
        thinking, calls = Thinking.NONE, None
        for name in text.split("+") if text else ():
            if name in _THINKING and not thinking:
                thinking = _THINKING[name]
            elif name in TOOL_FORMATS and calls is None:
                calls = TOOL_FORMATS[name]
            else:
                return cls()
        return cls(thinking, calls)

    def __str__(self) -> str:
        names = (str(self.thinking), "" if self.calls is None else self.calls.name)
        return "+".join(filter(None, names))

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to separate."""
        return not self.thinking and self.calls is None
