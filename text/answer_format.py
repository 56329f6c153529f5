"""What the text of an answer holds besides content: thinking, and tool calls in some format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from orcastream.text.tools.formats import TOOL_FORMATS, ToolFormat


class Thinking(StrEnum):
    """Where a model's thinking begins."""

    NONE = ""
    MAY_COME = "think"
    """The answer may open it."""
    OPEN = "thinking"
    """The prompt has opened it."""


_THINKING: Final[Mapping[str, Thinking]] = MappingProxyType({str(each): each for each in Thinking if each})


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one answer is to be read. A plain one is all content."""

    thinking: Thinking = Thinking.NONE
    calls: ToolFormat | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `think+hermes`, as it travels with a request; what has an unknown name in it is plain."""
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
        """Whether nothing has to be told apart."""
        return not self.thinking and self.calls is None
