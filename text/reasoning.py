"""Separates a model's reasoning from its answer."""

from typing import NamedTuple

from orcastream.text.marks import SPACE, PastSpace, Trimmed, UpToMark

OPENS, CLOSES = "<think>", "</think>"
"""The marks of Qwen3, DeepSeek R1 and similar models."""


class Thought(NamedTuple):
    """A piece of text, split into reasoning and answer."""

    reasoning: str
    content: str


class ReasoningParser:
    """Splits an answer at the reasoning marks, which belong to neither side, like line breaks around them.

    White space may precede the opening mark. An answer that does not begin with it has no reasoning, unless the prompt
    ended with that mark. Reasoning that is never closed extends to the end. The output depends on the whole text alone.
    """

    def __init__(self, *, inside: bool = False) -> None:
        """`inside`: the prompt has already opened the reasoning."""
        self._opening = None if inside else PastSpace(SPACE)
        self._thinking: UpToMark | None = UpToMark(CLOSES) if inside else None
        self._reasoning = Trimmed(at_start=True, space="\n")
        self._at_start = False

    @property
    def has_ended(self) -> bool:
        """Whether all later text belongs to the answer."""
        return self._opening is None and self._thinking is None

    def push(self, text: str) -> Thought:
        """Take the next piece of text."""
        if self._opening is not None:
            begun = self._opening.push(text)
            if begun.startswith(OPENS):
                self._thinking, text = UpToMark(CLOSES), begun[len(OPENS) :]
            elif OPENS.startswith(begun):
                return Thought("", "")
            else:
                text = self._opening.held
            self._opening = None
        if self._thinking is None:
            return Thought("", self._answer(text))
        inside, after = self._thinking.push(text)
        reasoning = self._reasoning.push(inside)
        if after is None:
            return Thought(reasoning, "")
        self._thinking, self._at_start = None, True
        return Thought(reasoning, self._answer(after))

    def finish(self) -> Thought:
        """Return the text held back, at the end of the text."""
        if self._opening is not None:
            rest, self._opening = self._opening.held, None
            return Thought("", rest)
        return Thought("" if self._thinking is None else self._reasoning.push(self._thinking.finish()), "")

    def _answer(self, text: str) -> str:
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = not text
        return text
