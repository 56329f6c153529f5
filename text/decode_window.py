"""Incremental text from a tokenizer that can only decode whole sequences: a sliding window of a few tokens."""

from collections.abc import Callable

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 8
"""A character has at most four bytes: a tail still incomplete after this many tokens will never be complete."""


class DecodeWindow:
    """Decodes a short window without and with each token, and takes the difference.

    `prefix` are the tokens that produced the newest text, `pending` those whose text is not yet certain. Both are
    bounded, so a token costs O(1) decodings of at most a dozen tokens. One token at a time: never grouped.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._prefix: list[int] = []
        self._prefix_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is now certain."""
        self._pending.append(token_id)
        text = self._decode(self._prefix + self._pending)
        whole = not text.endswith(_REPLACEMENT) and len(text) > len(self._prefix_text)
        if not whole and len(self._pending) < _MAX_PENDING:
            return ""
        return self._settle(text)

    def finish(self) -> str:
        """Return the rest; incomplete characters become replacement characters."""
        return self._settle(self._decode(self._prefix + self._pending)) if self._pending else ""

    def _settle(self, text: str) -> str:
        new = text[len(self._prefix_text) :]
        self._prefix, self._pending = self._pending, []
        self._prefix_text = self._decode(self._prefix)
        return new
