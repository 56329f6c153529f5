"""Splits the text of one choice into its parts, and assigns ids to calls."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from orcastream.gateway.openai.parts import Arguments, Call, Part
from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_parser import AnswerParser, AnswerPart
from orcastream.text.tools.call import CallArguments, CallStart

_ID_BYTES: Final = 12


class AnswerSplitter:
    """Splits one choice. The output depends on the text alone, ids included, so any gateway produces the same."""

    def __init__(self, answer_format: AnswerFormat, request_id: str, choice: int) -> None:
        """`request_id` is the id in the queue, which no two requests share."""
        self._parser = AnswerParser(answer_format)
        self._request_id = request_id
        self._choice = choice
        self._num_calls = 0
        self._num_whole = 0

    @property
    def has_whole_calls(self) -> bool:
        """Whether there were calls, and none of them was cut."""
        return 0 < self._num_calls == self._num_whole

    @property
    def may_think(self) -> bool:
        """Whether later text may be reasoning."""
        return self._parser.may_think

    def push(self, text: str) -> Sequence[Part]:
        """Take the next piece of text; return the parts that are now certain."""
        return [self._part(part) for part in self._parser.push(text)]

    def finish(self) -> Sequence[Part]:
        """Return the remaining parts at the end of the text."""
        return [self._part(part) for part in self._parser.finish()]

    def _part(self, part: AnswerPart) -> Part:
        if isinstance(part, CallStart):
            return self._call(part.name)
        if isinstance(part, CallArguments):
            self._num_whole += part.is_last
            return Arguments(self._num_calls - 1, part.text, part.is_last)
        return part

    def _call(self, name: str) -> Call:
        number = self._num_calls
        self._num_calls += 1
        named = f"{self._request_id} {self._choice} {number}".encode()
        return Call(number, f"call_{blake2b(named, digest_size=_ID_BYTES).hexdigest()}", name)
