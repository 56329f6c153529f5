"""The parts of answers other than text."""

from typing import NamedTuple

from orcastream.text.answer_parser import Reasoning


class Call(NamedTuple):
    """The beginning of a tool call; `number` is its index among its choice's calls."""

    number: int
    id: str
    name: str


class Arguments(NamedTuple):
    """More of a call's arguments; `is_last`: they are now complete, JSON text of one object."""

    number: int
    text: str
    is_last: bool


Part = str | Reasoning | Call | Arguments
"""Content, reasoning, or a part of a call."""
