"""Separates the text of an answer as it arrives: reasoning, content, tool calls."""

from typing import NamedTuple

from orcastream.text.answer_format import AnswerFormat, Thinking
from orcastream.text.reasoning import ReasoningParser, Thought
from orcastream.text.tools.call import Part


class Reasoning(NamedTuple):
    """Text of a model's reasoning."""

    text: str


AnswerPart = Part | Reasoning
"""Content, reasoning, or a part of a call, in the order of the answer."""


class AnswerParser:
    """Splits one answer. The output depends on the text alone, not on how it was cut into pieces."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        thinking, calls = answer_format.thinking, answer_format.calls
        self._thinking = ReasoningParser(inside=thinking is Thinking.OPEN) if thinking else None
        self._calls = None if calls is None else calls.parser()

    @property
    def may_think(self) -> bool:
        """Whether later text may be reasoning."""
        return self._thinking is not None and not self._thinking.has_ended

    def push(self, text: str) -> list[AnswerPart]:
        """Take the next piece of text; return the parts that are now certain."""
        return self._content(text) if self._thinking is None else self._parts(self._thinking.push(text))

    def finish(self) -> list[AnswerPart]:
        """Return the remaining parts at the end of the text."""
        rest = [] if self._thinking is None else self._parts(self._thinking.finish())
        return rest if self._calls is None else [*rest, *self._calls.finish()]

    def _parts(self, thought: Thought) -> list[AnswerPart]:
        content = self._content(thought.content)
        return [Reasoning(thought.reasoning), *content] if thought.reasoning else content

    def _content(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        return [text] if self._calls is None else [*self._calls.push(text)]
