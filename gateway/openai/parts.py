"""What answers are made of, beside text."""

from typing import NamedTuple

from orcastream.text.answer_parser import Reasoning


class Call(NamedTuple):
    """A tool call begins; `number` is its place among those of its choice."""

    number: int
    id: str
    name: str


class Arguments(NamedTuple):
    """More of the arguments of a call; `is_last`: they are whole now, JSON text of one object."""

    number: int
    text: str
    is_last: bool


Part = str | Reasoning | Call | Arguments
"""Content, thinking, or what there is of a call."""
