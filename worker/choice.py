"""One of the `n` answers to a request: the tokens the engine made, and how many of them the reply log holds."""

from collections.abc import Collection, Sequence
from typing import Any

from orcastream.schemas.events import Ending, Run
from orcastream.schemas.request import Payload
from orcastream.schemas.stopping import FinishReason, first_finish
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.stop_text import StopText


class Choice:
    """Output of one choice. `num_logged` tokens are published and final; those after them wait for the next write."""

    __slots__ = (
        "_keeps_logprobs",
        "_logprobs",
        "_max_tokens",
        "_payload",
        "_shows_logprobs",
        "_stop_text",
        "cached_tokens",
        "ending",
        "index",
        "num_logged",
        "tokens",
    )

    def __init__(self, index: int, payload: Payload, max_tokens: int, tokenizer: Tokenizer | None) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.num_logged = 0
        self.ending: Ending | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens found in a prefix cache; None before the engine's first token."""
        self._payload = payload
        self._max_tokens = max_tokens
        self._logprobs: list[Any] = []
        self._shows_logprobs = payload.logprobs is not None
        self._keeps_logprobs = self._shows_logprobs or payload.is_ranked
        self._stop_text: StopText | None = None
        if payload.stop and tokenizer is not None:
            self._stop_text = StopText(tokenizer, payload.stop, payload.min_tokens)

    def adopt(self, logged: Sequence[int], eos_token_ids: Collection[int]) -> None:
        """Start from the tokens in a reply log: stop conditions are evaluated on them before any forward pass.

        The log's writer may have had a longer context or another EOS, and have continued where this worker would have
        ended: tokens that clients have seen stay, and the choice ends with the last of them.
        """
        if self._max_tokens == 0:
            self.ending = Ending(FinishReason.LENGTH, 0)
            return
        for token in logged:
            self._append(token, None)
            if self.ending is not None:
                break
        finish = first_finish(logged, self._payload.sampling, eos_token_ids, self._max_tokens)
        if finish is not None and (self.ending is None or finish[0] < self.ending.tokens):
            self._finish(finish[1], len(self.tokens), self.tokens[-1])
        self.num_logged = len(self.tokens)

    def accept(self, token: int, reason: FinishReason | None, logprobs: Any) -> None:
        """Take the engine's next token; ignored once the choice has ended."""
        if self.ending is not None:
            return
        self._append(token, logprobs)
        if reason is not None and self.ending is None:
            self._finish(reason, len(self.tokens), token)

    def extends(self, logged: Sequence[int]) -> bool:
        """Whether this worker's own tokens begin with those in the log."""
        return self.tokens[: len(logged)] == list(logged)

    @property
    def num_publishable(self) -> int:
        """Tokens that may be in the log before it ends: none that is, or could be, part of a stop string.

        Logged tokens stay counted: their writer may have known from later tokens that they were not part of one.
        """
        if self._stop_text is None:
            return len(self.tokens) if self.ending is None else self.ending.tokens
        if self.ending is not None and self.ending.text_length is None:
            return self.ending.tokens
        return max(self.num_logged, self._stop_text.num_publishable)

    def next_run(self, *, last: bool = False) -> Run | None:
        """Return the tokens that may be published and are not yet; None if there are none.

        `last`: for the terminal event, which says where the text ends; only there may part of a stop string follow it.
        """
        start = self.num_logged
        end = self.abandoned().tokens if last else self.num_publishable
        if end <= start:
            return None
        logprobs = tuple(self._logprobs[start:end]) if self._shows_logprobs else None
        return Run(self.index, start, tuple(self.tokens[start:end]), logprobs)

    def mean_logprob(self) -> float:
        """Return the mean log probability per output token of an ended choice computed with log probabilities."""
        num_tokens = self.abandoned().tokens
        total: float = sum(item[0] for item in self._logprobs[:num_tokens])
        return total / num_tokens

    def abandoned(self) -> Ending:
        """Return the choice's ending if its request ends before it does."""
        return self.ending or Ending(None, self.num_publishable)

    def _append(self, token: int, logprobs: Any) -> None:
        self.tokens.append(token)
        if self._keeps_logprobs:
            self._logprobs.append(logprobs)
        if self._stop_text is not None:
            hit = self._stop_text.push(token)
            if hit is not None:
                self.ending = Ending(FinishReason.STOP, hit.num_tokens, hit.text_length, hit.stop)

    def _finish(self, reason: FinishReason, num_tokens: int, token: int) -> None:
        stop = token if token in self._payload.stop_token_ids else None
        self.ending = Ending(reason, num_tokens, stop=stop if reason is FinishReason.STOP else None)
