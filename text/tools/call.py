"""The parts of a tool call, and the interface for recognizing them in text."""

from dataclasses import dataclass
from typing import Protocol

from orcastream.text.marks import Trimmed


@dataclass(frozen=True, slots=True)
class CallStart:
    """A model calls the tool of that name. Arguments always follow at once."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More arguments of the current call: JSON text of one object, as the model wrote it.

    `is_last`: the object is closed. If a call is cut before, the text so far is the beginning of an object.
    """

    text: str
    is_last: bool = False


Part = str | CallStart | CallArguments
"""Text of the answer, or a part of a call in its place."""


class ToolParser(Protocol):
    """Separates calls from text in an answer that arrives in pieces.

    A call begins once its name is known and its arguments open as an object; from then on each piece of text yields its
    part of the arguments. Anything that looks like a call but is none before that is text, and so is everything after
    the last character that can belong to the arguments.

    The output, with adjacent parts of one kind joined, depends on the whole text alone. White space between calls, and
    between text and calls, is dropped.
    """

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are now certain."""

    def finish(self) -> list[Part]:
        """Return the remaining parts at the end of the text."""


class TextBetween:
    """Text around calls, without the white space that separates them."""

    def __init__(self) -> None:
        self._trimmed = Trimmed(at_start=False)
        self._has_calls = False

    def push(self, text: str) -> list[Part]:
        """Return the part of `text` that is certain."""
        inner = self._trimmed.push(text)
        return [inner] if inner else []

    def call(self, *, is_whole: bool) -> None:
        """Note a call here; text after a call that was cut continues at once."""
        self._trimmed, self._has_calls = Trimmed(at_start=is_whole), True

    def finish(self) -> list[Part]:
        """Return white space at the end of an answer, which is part of it if there are no calls."""
        return [self._trimmed.held] if self._trimmed.held and not self._has_calls else []
