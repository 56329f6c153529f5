"""The text of one choice of a reply, which a stop string may have cut."""

from collections.abc import Sequence

from orcastream.text.detokenizer import Detokenizer
from orcastream.text.tokenizer import Tokenizer


class ChoiceText:
    """A detokenizer that gives out no more than `text_length` characters, where a reply's end names such a length."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self.text_length: int | None = None
        """Where a stop string cut the text, in characters; to be set before the last tokens."""

    @property
    def length(self) -> int:
        """Characters that the tokens so far have made certain."""
        return self._detokenizer.length

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens`, the next ones, make certain."""
        given_out = self._detokenizer.length
        return self._cut(given_out, self._detokenizer.push(tokens))

    def finish(self) -> str:
        """The text that only the end makes certain."""
        given_out = self._detokenizer.length
        return self._cut(given_out, self._detokenizer.finish())

    def _cut(self, given_out: int, text: str) -> str:
        return text if self.text_length is None else text[: max(0, self.text_length - given_out)]
