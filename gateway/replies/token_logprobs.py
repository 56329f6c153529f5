"""Log probabilities of a choice's tokens, with the tokens as text."""

from typing import Any, Final

from orcastream.gateway.openai.logprobs import LikelyToken, TokenLogprob
from orcastream.text.token_text import TokenText, token_text
from orcastream.text.tokenizer import Tokenizer

_LOWEST: Final = -9999.0
"""Instead of minus infinity, which JSON cannot say."""


def told(
    tokenizer: Tokenizer, token: int, logprobs: Any, *, position: int, brought: tuple[int, int], rank: int | None = None
) -> TokenLogprob:
    """One token of a run whose log probabilities were asked for; `brought`: the characters of the text that were known
    before it, and with it.

    `logprobs` None: the first token of a prompt.
    """
    first = position == 0
    if logprobs is None:
        return TokenLogprob(LikelyToken(token, token_text(tokenizer, token, first=first), None), brought[0], ())
    own, likeliest = logprobs
    others = [_likely(tokenizer, other, value, first=first) for other, value in likeliest]
    chosen = _likely(tokenizer, token, own, first=first)
    return TokenLogprob(chosen, _beginning(chosen.token, *brought), others, rank)


def _beginning(token: TokenText, before: int, after: int) -> int:
    """Where the token's own text begins: behind U+FFFD for bytes of earlier ones that it leaves without their end."""
    return max(before, after - len(token.text)) if token.is_text else before


def _likely(tokenizer: Tokenizer, token: int, logprob: float, *, first: bool) -> LikelyToken:
    return LikelyToken(token, token_text(tokenizer, token, first=first), max(logprob, _LOWEST))
