"""Calls as Hermes, Qwen2.5 and Qwen3 write them: JSON objects between marks."""

from orcastream.text.marks import SPACE, PastSpace, UpToMark
from orcastream.text.tools.call import Part, TextBetween
from orcastream.text.tools.call_reader import CallReader

OPENS, CLOSES = "<tool_call>", "</tool_call>"


class HermesParser:
    """See ToolParser. A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, possibly with text around
    it.

    A call without arguments begins at its closing mark.
    """

    def __init__(self) -> None:
        self._text = TextBetween()
        self._outside = UpToMark(OPENS)
        self._call: CallReader | None = None
        self._behind = PastSpace(SPACE)
        """Text after the object of the call that may be the closing mark."""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are now certain."""
        parts: list[Part] = []
        left: str | None = text
        while left is not None:
            if self._call is None:
                left = self._find(left, parts)
            elif self._call.has_ended:
                left = self._close(self._call, left, parts)
            else:
                left = self._read(self._call, left, parts)
        return parts

    def finish(self) -> list[Part]:
        """Return the rest at the end of the text: a call that has not begun is text."""
        if self._call is None:
            return [*self._text.push(self._outside.finish()), *self._text.finish()]
        if self._call.has_begun:
            return []
        return [*self._text.push(f"{OPENS}{self._call.held}{self._behind.held}"), *self._text.finish()]

    def _find(self, text: str, parts: list[Part]) -> str | None:
        """Take text up to the opening mark; return what follows the mark."""
        before, left = self._outside.push(text)
        parts += self._text.push(before)
        self._call, self._behind = None if left is None else CallReader(), PastSpace(SPACE)
        return left

    def _read(self, call: CallReader, text: str, parts: list[Part]) -> str | None:
        """Take more of the object; return what follows it."""
        told, left = call.push(text)
        parts += told
        if left is not None and not call.has_ended:
            self._give_up(call, parts)
        return left

    def _close(self, call: CallReader, text: str, parts: list[Part]) -> str | None:
        """Take what follows the object: the closing mark, or else it is text."""
        begun = self._behind.push(text)
        if begun != CLOSES and CLOSES.startswith(begun):
            return None
        if not (begun.startswith(CLOSES) and call.is_call):
            self._give_up(call, parts)
            return self._behind.held
        parts += [] if call.has_begun else call.confirm()
        self._leave(is_whole=True)
        return begun[len(CLOSES) :]

    def _give_up(self, call: CallReader, parts: list[Part]) -> None:
        """This is not a call, or its arguments are interrupted: what follows is text."""
        if call.has_begun:
            self._leave(is_whole=call.is_whole)
        else:
            parts += self._text.push(OPENS + call.held)
            self._call = None

    def _leave(self, *, is_whole: bool) -> None:
        self._text.call(is_whole=is_whole)
        self._call = None
