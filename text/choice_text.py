"""The text of one choice of a reply, which a stop string may have cut."""

from collections.abc import Sequence

from orcastream.text.detokenizer import Detokenizer
from orcastream.text.tokenizer import Tokenizer


class ChoiceText:
    """A detokenizer that outputs at most `text_length` characters, if a reply's end sets that length."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self.text_length: int | None = None
        """Where a stop string cut the text, in characters; set it before the last tokens."""

    @property
    def length(self) -> int:
        """Characters that are certain after the tokens so far."""
        return self._detokenizer.length

    def push(self, tokens: Sequence[int]) -> str:
        """Take the next tokens; return the text that is now certain."""
        given_out = self._detokenizer.length
        return self._cut(given_out, self._detokenizer.push(tokens))

    def finish(self) -> str:
        """Return the text that only the end makes certain."""
        given_out = self._detokenizer.length
        return self._cut(given_out, self._detokenizer.finish())

    def _cut(self, given_out: int, text: str) -> str:
        return text if self.text_length is None else text[: max(0, self.text_length - given_out)]
