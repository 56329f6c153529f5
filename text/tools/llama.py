"""Calls as Llama 3.1 and later write them: an answer that is a JSON object, or several separated by semicolons."""

from orcastream.text.marks import SPACE, PastSpace
from orcastream.text.tools.call import Part
from orcastream.text.tools.call_reader import CallReader

TAG = "<|python_tag|>"
"""May precede the first call: a separate token, visible in text only where special tokens are shown."""


class LlamaParser:
    """See ToolParser. An answer that begins with `{` is calls `{"name": …, "parameters": {…}}`, then perhaps text.

    An object without parameters is text: it cannot be distinguished from a JSON answer that has a name.
    """

    def __init__(self) -> None:
        self._before = ""
        """Text before the next object, whose kind is not known yet."""
        self._gap = PastSpace(SPACE)
        """Text after that or after the last object, which may lead to the next one."""
        self._call: CallReader | None = None
        self._has_calls = False
        self._is_text = False

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are now certain."""
        parts: list[Part] = []
        left = text
        while left and not self._is_text:
            if self._call is None or self._call.has_ended:
                left = self._find(left, parts)
            else:
                left = self._read(self._call, left, parts)
        return [*parts, left] if left else parts

    def finish(self) -> list[Part]:
        """Return the rest at the end of the text: a call that has not begun is text."""
        if self._is_text or (self._call is not None and self._call.has_ended):
            return []
        return self._become_text("" if self._call is None else self._call.held)

    def _find(self, text: str, parts: list[Part]) -> str:
        """Take text up to the next object; return the part of the text that belongs to it."""
        begun = self._gap.push(text)
        may_be_tag = self._call is None and not self._before
        if may_be_tag and begun.startswith(TAG):
            self._before, self._gap = self._gap.space + TAG, PastSpace(SPACE)
            return begun.removeprefix(TAG)
        if begun.startswith("{"):
            self._before += self._gap.space
            self._call, self._gap = CallReader(), PastSpace(";" + SPACE)
            return begun
        if begun and not (may_be_tag and TAG.startswith(begun)):
            parts += self._become_text("")
        return ""

    def _read(self, call: CallReader, text: str, parts: list[Part]) -> str:
        """Take more of an object; return what follows it."""
        told, left = call.push(text)
        parts += told
        if told:
            self._has_calls, self._before = True, ""
        if left is None:
            return ""
        if not (call.has_ended and call.has_begun):
            parts += self._become_text(call.held)
        return left

    def _become_text(self, held: str) -> list[Part]:
        """Return the text held back; everything that follows is text, too."""
        text = self._before + held + self._gap.held
        self._is_text = True
        if self._has_calls:
            text = text.lstrip(SPACE)
        return [text] if text else []
