"""What answers are made of, beside text."""

from typing import NamedTuple

from orcastream.text.answer_parser import Reasoning


class Call(NamedTuple):
    """A tool call; `number` is its place among those of its choice, `arguments` JSON text of one object."""

    number: int
    id: str
    name: str
    arguments: str


Part = str | Reasoning | Call
"""Content, thinking, or a call."""
