"""Log probabilities as the two endpoints write them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orcastream.text.token_text import TokenText


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token and its natural log probability; None: it is a prompt's first, which follows nothing."""

    id: int
    token: TokenText
    logprob: float | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer or of its prompt, how many characters of its choice's text are before it, and what else was
    likely, the likeliest first. `rank`: one more than the number of tokens that were likelier, where a prompt's log
    tells it."""

    chosen: LikelyToken
    text_offset: int
    likeliest: Sequence[LikelyToken]
    rank: int | None = None


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice of a chat."""
    content = [
        {**chat_token(one.chosen), "top_logprobs": [chat_token(other) for other in one.likeliest]} for one in tokens
    ]
    return {"content": content, "refusal": None}


def chat_token(likely: LikelyToken) -> dict[str, Any]:
    """A token with its log probability, as chats and responses have it."""
    return {"token": likely.token.text, "logprob": likely.logprob, "bytes": list(likely.token.raw)}


def completion_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice of a completion: lists of one item per token."""
    return {
        "tokens": [_name(one.chosen) for one in tokens],
        "token_logprobs": [one.chosen.logprob for one in tokens],
        "top_logprobs": [_top(one) for one in tokens],
        "text_offset": [one.text_offset for one in tokens],
    }


def _top(one: TokenLogprob) -> dict[str, Any] | None:
    if one.chosen.logprob is None:
        return None
    return {_name(likely): likely.logprob for likely in (*one.likeliest, one.chosen)}


def _name(likely: LikelyToken) -> str:
    """The token's text; its bytes where they are no whole characters, as OpenAI tells them."""
    if likely.token.is_text:
        return likely.token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in likely.token.raw)
