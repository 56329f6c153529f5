"""Calls as Hermes, Qwen2.5 and Qwen3 write them: JSON objects between marks."""

import json

from orcastream.text.marks import UpToMark
from orcastream.text.tools.call import Part, TextBetween, read_call

OPENS, CLOSES = "<tool_call>", "</tool_call>"


class HermesParser:
    """See ToolParser. A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; text may stand around it."""

    def __init__(self) -> None:
        self._text = TextBetween()
        self._outside = UpToMark(OPENS)
        self._inside: UpToMark | None = None
        self._body = ""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; what it makes certain."""
        parts: list[Part] = []
        left: str | None = text
        while left is not None:
            if self._inside is None:
                before, left = self._outside.push(left)
                parts += self._text.push(before)
                self._inside = None if left is None else UpToMark(CLOSES)
                continue
            body, left = self._inside.push(left)
            self._body += body
            if left is not None:
                parts += self._close(self._body)
                self._inside, self._body = None, ""
        return parts

    def finish(self) -> list[Part]:
        """The rest, where the text ends: a call that is cut is text."""
        rest = self._outside.finish()
        if self._inside is not None:
            rest = OPENS + self._body + self._inside.finish()
        return [*self._text.push(rest), *self._text.finish()]

    def _close(self, body: str) -> list[Part]:
        try:
            call = read_call(json.loads(body), "arguments")
        except (ValueError, RecursionError):
            call = None
        return self._text.push(OPENS + body + CLOSES) if call is None else self._text.call(call)
