"""Log probabilities of a choice's tokens, with the tokens as text."""

from typing import Any, Final

from orcastream.gateway.openai.logprobs import LikelyToken, TokenLogprob
from orcastream.text.token_text import TokenText, token_text
from orcastream.text.tokenizer import Tokenizer

_LOWEST: Final = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def told(
    tokenizer: Tokenizer, token: int, logprobs: Any, *, position: int, brought: tuple[int, int], rank: int | None = None
) -> TokenLogprob:
    """Return one token of a run with log probabilities; `brought`: the characters of text known before and after it.

    `logprobs` None means the first token of a prompt.
    """
    first = position == 0
    if logprobs is None:
        return TokenLogprob(LikelyToken(token, token_text(tokenizer, token, first=first), None), brought[0], ())
    own, likeliest = logprobs
    others = [_likely(tokenizer, other, value, first=first) for other, value in likeliest]
    chosen = _likely(tokenizer, token, own, first=first)
    return TokenLogprob(chosen, _beginning(chosen.token, *brought), others, rank)


def _beginning(token: TokenText, before: int, after: int) -> int:
    """Return where the token's own text begins: after U+FFFD for incomplete bytes of earlier tokens."""
    return max(before, after - len(token.text)) if token.is_text else before


def _likely(tokenizer: Tokenizer, token: int, logprob: float, *, first: bool) -> LikelyToken:
    return LikelyToken(token, token_text(tokenizer, token, first=first), max(logprob, _LOWEST))
