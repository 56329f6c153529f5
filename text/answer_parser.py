"""The text of an answer, told apart as it arrives: thinking, content, tool calls."""

from typing import NamedTuple

from orcastream.text.answer_format import AnswerFormat, Thinking
from orcastream.text.reasoning import ReasoningParser, Thought
from orcastream.text.tools.call import Part


class Reasoning(NamedTuple):
    """Text of a model's thinking."""

    text: str


AnswerPart = Part | Reasoning
"""Content, thinking, or what there is of a call, in the order of the answer."""


class AnswerParser:
    """Splits one answer. What has come out after some text depends on that text alone, not on how it was cut."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        thinking, calls = answer_format.thinking, answer_format.calls
        self._thinking = ReasoningParser(inside=thinking is Thinking.OPEN) if thinking else None
        self._calls = None if calls is None else calls.parser()

    def push(self, text: str) -> list[AnswerPart]:
        """Take the next piece of text; what it makes certain."""
        return self._content(text) if self._thinking is None else self._parts(self._thinking.push(text))

    def finish(self) -> list[AnswerPart]:
        """The rest, where the text ends."""
        rest = [] if self._thinking is None else self._parts(self._thinking.finish())
        return rest if self._calls is None else [*rest, *self._calls.finish()]

    def _parts(self, thought: Thought) -> list[AnswerPart]:
        content = self._content(thought.content)
        return [Reasoning(thought.reasoning), *content] if thought.reasoning else content

    def _content(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        return [text] if self._calls is None else [*self._calls.push(text)]
