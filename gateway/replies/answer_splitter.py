"""Splits the text of one choice into its parts, and gives calls their ids."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from orcastream.gateway.openai.parts import Call, Part
from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_parser import AnswerParser, AnswerPart
from orcastream.text.tools.call import ToolCall

_ID_BYTES: Final = 12


class AnswerSplitter:
    """What has come out after some text depends on that text alone, ids included: any gateway gives the same."""

    def __init__(self, answer_format: AnswerFormat, request_id: str, choice: int) -> None:
        """`request_id` is that in the queue, which no two requests share."""
        self._parser = AnswerParser(answer_format)
        self._request_id = request_id
        self._choice = choice
        self.num_calls = 0
        """Calls that have come out."""

    def push(self, text: str) -> Sequence[Part]:
        """Take the next piece of text; what it makes certain."""
        return [self._part(part) for part in self._parser.push(text)]

    def finish(self) -> Sequence[Part]:
        """The rest, where the text ends."""
        return [self._part(part) for part in self._parser.finish()]

    def _part(self, part: AnswerPart) -> Part:
        if not isinstance(part, ToolCall):
            return part
        number = self.num_calls
        self.num_calls += 1
        named = f"{self._request_id} {self._choice} {number}".encode()
        return Call(number, f"call_{blake2b(named, digest_size=_ID_BYTES).hexdigest()}", part.name, part.arguments)
