"""The text of a reply as its tokens arrive: one detokenizer per choice, cut where a stop string ended it."""

from collections.abc import Sequence

from text.detokenizer import Detokenizer
from text.tokenizer import Tokenizer


class ChoiceText:
    """Text of one choice. What has been given out is a function of the tokens taken in, not of how they were read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self.tokens_taken = 0
        self.finished = False

    def advance(self, tokens: Sequence[int], upto: int | None = None) -> str:
        """Take in the choice's `tokens` (all of them, from its start) up to the count `upto`; return the new text."""
        new = tokens[self.tokens_taken : upto]
        self.tokens_taken += len(new)
        return self._detokenizer.push(new)

    def finish(self, tokens: Sequence[int], text_length: int | None) -> str:
        """The rest of the text, `tokens` being all there will be and `text_length` where a stop string cut it."""
        given_out = self._detokenizer.length
        rest = self.advance(tokens) + self._detokenizer.finish()
        self.finished = True
        return rest if text_length is None else rest[: max(0, text_length - given_out)]


class ReplyText:
    """Texts of all choices of one reply, each behind its own detokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._choices: list[ChoiceText] = []

    def choice(self, number: int) -> ChoiceText:
        """The text of one choice."""
        while len(self._choices) <= number:
            self._choices.append(ChoiceText(self._tokenizer))
        return self._choices[number]

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens taken in, per choice."""
        return tuple(choice.tokens_taken for choice in self._choices)
