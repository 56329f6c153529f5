"""A tool call, and what recognises one in text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orcastream.text.marks import Trimmed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model wants called; `arguments` is JSON text of one object."""

    name: str
    arguments: str


Part = str | ToolCall
"""Text of the answer, or a call in its place."""


class ToolParser(Protocol):
    """Tells calls from text in an answer that arrives in pieces.

    What comes out, texts that follow each other joined, depends on the whole text alone. What looks like a call and is
    none is text. White space between calls, and between text and calls, is neither.
    """

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; what it makes certain."""

    def finish(self) -> list[Part]:
        """The rest, where the text ends."""


def read_call(value: object, arguments: str) -> ToolCall | None:
    """The call that a JSON value is, its arguments under that name; None where it is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given: Any = value.get(arguments, {})
    if not isinstance(given, Mapping):
        return None
    try:
        value["name"].encode()
        return ToolCall(value["name"], _as_json(given))
    except ValueError:
        return None


def _as_json(given: object) -> str:
    """As text that can be sent: half of a surrogate pair stays an escape. ValueError for what JSON cannot say."""
    text = json.dumps(given, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(given)
    return text


class TextBetween:
    """Text around calls, without the white space that sets them off."""

    def __init__(self) -> None:
        self._trimmed = Trimmed(at_start=False)
        self._has_calls = False

    def push(self, text: str) -> list[Part]:
        """What of `text` is certain."""
        inner = self._trimmed.push(text)
        return [inner] if inner else []

    def call(self, call: ToolCall) -> list[Part]:
        """A call comes here."""
        self._trimmed, self._has_calls = Trimmed(at_start=True), True
        return [call]

    def finish(self) -> list[Part]:
        """White space at the end of an answer without calls is part of it."""
        return [self._trimmed.held] if self._trimmed.held and not self._has_calls else []
