"""Log probabilities of a choice's tokens, with the tokens as text."""

from typing import Any, Final

from orcastream.gateway.openai.logprobs import LikelyToken, TokenLogprob
from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer

_LOWEST: Final = -9999.0
"""Instead of minus infinity, which JSON cannot say."""


def told(
    tokenizer: Tokenizer, token: int, logprobs: Any, *, position: int, text_offset: int, rank: int | None = None
) -> TokenLogprob:
    """One token of a run whose log probabilities were asked for; `text_offset` characters of the text are before it.

    `logprobs` None: the first token of a prompt.
    """
    first = position == 0
    if logprobs is None:
        return TokenLogprob(LikelyToken(token, token_text(tokenizer, token, first=first), None), text_offset, ())
    own, likeliest = logprobs
    others = [_likely(tokenizer, other, value, first=first) for other, value in likeliest]
    return TokenLogprob(_likely(tokenizer, token, own, first=first), text_offset, others, rank)


def _likely(tokenizer: Tokenizer, token: int, logprob: float, *, first: bool) -> LikelyToken:
    return LikelyToken(token, token_text(tokenizer, token, first=first), max(logprob, _LOWEST))
