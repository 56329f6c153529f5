"""Stop strings over the tokens of one choice: which tokens may be shown, and where the text ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from orcastream.text.detokenizer import Detokenizer
from orcastream.text.stop_matcher import StopMatcher
from orcastream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string was completed by the `num_tokens`-th token; the text ends at character `text_length`."""

    num_tokens: int
    text_length: int
    stop: str


class StopText:
    """Watches the text of one choice for stop strings, from its first token on.

    A token may be published once no part of its text can belong to an incomplete stop string, so the reply log never
    shows any part of one. Text of the first `min_tokens` tokens is not searched.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], min_tokens: int) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._text_length = 0
        self._unsearched_length = 0
        self._ends: list[int] = []
        self.num_publishable = 0
        self.hit: StopHit | None = None

    def push(self, token: int) -> StopHit | None:
        """Take the next token; return the hit if it completes a stop string."""
        text = self._detokenizer.push([token])
        self._num_tokens += 1
        self._text_length += len(text)
        self._ends.append(self._text_length)
        if self._num_tokens <= self._min_tokens:
            self._unsearched_length = self._text_length
            self.num_publishable = self._num_tokens
            return None
        _, match = self._matcher.push(text)
        if match is not None:
            self.hit = StopHit(self._num_tokens, self._unsearched_length + match.start, match.stop)
            return self.hit
        self._release(self._text_length - len(self._matcher.held))
        return None

    def _release(self, safe_length: int) -> None:
        while self.num_publishable < self._num_tokens and self._ends[self.num_publishable] <= safe_length:
            self.num_publishable += 1
