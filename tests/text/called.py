"""Parts of answers, with neighbors of one kind merged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orcastream.text.answer_parser import AnswerPart, Reasoning
from orcastream.text.tools.call import CallArguments, CallStart


@dataclass(frozen=True)
class Called:
    """A call and the arguments received so far."""

    name: str
    arguments: str
    is_whole: bool = True


Joined = str | Reasoning | Called


def joined(parts: Iterable[AnswerPart]) -> list[Joined]:
    """Return consecutive texts merged, and each call with its arguments."""
    whole: list[Joined] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, CallStart):
            whole.append(Called(part.name, "", is_whole=False))
        elif isinstance(part, CallArguments):
            assert isinstance(last, Called), "arguments directly follow the start of their call"
            assert part.text
            assert not last.is_whole
            whole[-1] = Called(last.name, last.arguments + part.text, part.is_last)
        elif isinstance(part, str) and isinstance(last, str):
            whole[-1] = last + part
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + part.text)
        else:
            whole.append(part)
    return whole


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Return the text in pieces."""
    bounds = sorted({0, *(place for place in places if place < len(text)), len(text)})
    return [text[begin:end] for begin, end in pairwise(bounds)]
