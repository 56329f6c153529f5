"""The parts of a tool call, and what recognises them in text."""

from dataclasses import dataclass
from typing import Protocol

from orcastream.text.marks import Trimmed


@dataclass(frozen=True, slots=True)
class CallStart:
    """A model calls a tool of that name. Arguments follow at once; no call is without."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that has begun: JSON text of one object, as the model wrote it.

    `is_last`: the object is closed. What is there of a call that is cut before is the beginning of such text.
    """

    text: str
    is_last: bool = False


Part = str | CallStart | CallArguments
"""Text of the answer, or what there is of a call in its place."""


class ToolParser(Protocol):
    """Tells calls from text in an answer that arrives in pieces.

    A call begins where its name is known and its arguments open as an object; from there on each piece of text gives
    what it has of the arguments. What looks like a call and is none before is text, and so is what follows the last
    character that can belong to arguments which have begun.

    What comes out, neighbours of one kind joined, depends on the whole text alone. White space between calls, and
    between text and calls, is neither.
    """

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; what it makes certain."""

    def finish(self) -> list[Part]:
        """The rest, where the text ends."""


class TextBetween:
    """Text around calls, without the white space that sets them off."""

    def __init__(self) -> None:
        self._trimmed = Trimmed(at_start=False)
        self._has_calls = False

    def push(self, text: str) -> list[Part]:
        """What of `text` is certain."""
        inner = self._trimmed.push(text)
        return [inner] if inner else []

    def call(self, *, is_whole: bool) -> None:
        """A call was here; text goes on at once behind one that was cut."""
        self._trimmed, self._has_calls = Trimmed(at_start=is_whole), True

    def finish(self) -> list[Part]:
        """White space at the end of an answer without calls is part of it."""
        return [self._trimmed.held] if self._trimmed.held and not self._has_calls else []
