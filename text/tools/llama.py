"""Calls as Llama 3.1 and later write them: an answer that is a JSON object, or several with semicolons between."""

import json

from orcastream.text.tools.call import Part, ToolCall, read_call

_TAG = "<|python_tag|>"
"""A token of its own, which text shows only where special tokens are shown."""


class LlamaParser:
    """See ToolParser. An answer that begins with `{` is calls `{"name": …, "parameters": {…}}`, or else text."""

    def __init__(self) -> None:
        self._held: str | None = ""
        """What may be calls; None once it is known to be text."""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; what it makes certain."""
        if self._held is None:
            return [text] if text else []
        self._held += text
        begun = self._held.lstrip()
        if begun.startswith(("{", _TAG)) or _TAG.startswith(begun):
            return []
        rest, self._held = self._held, None
        return [rest]

    def finish(self) -> list[Part]:
        """The calls, or the text that they are not."""
        held, self._held = self._held, None
        if not held:
            return []
        calls = _calls(held)
        return [held] if calls is None else [*calls]


def _calls(text: str) -> list[ToolCall] | None:
    """All of `text` as calls; None where any of it is something else."""
    text = text.strip().removeprefix(_TAG).strip()
    decoder, calls = json.JSONDecoder(), []
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        call = read_call(value, "parameters")
        if call is None:
            return None
        calls.append(call)
        text = text[end:].lstrip("; \t\r\n")
    return calls or None
