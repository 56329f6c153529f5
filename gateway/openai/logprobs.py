"""Log probabilities in the forms of the endpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orcastream.text.token_text import TokenText


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token and its natural log probability; None means a prompt's first token, which has none."""

    id: int
    token: TokenText
    logprob: float | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer or its prompt, with the number of characters of its choice's text before it, and the
    likeliest tokens, in order. `rank`: one more than the number of likelier tokens, if the prompt's log contains it.
    """

    chosen: LikelyToken
    text_offset: int
    likeliest: Sequence[LikelyToken]
    rank: int | None = None


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return `logprobs` of a chat's choice."""
    content = [
        {**chat_token(one.chosen), "top_logprobs": [chat_token(other) for other in one.likeliest]} for one in tokens
    ]
    return {"content": content, "refusal": None}


def chat_token(likely: LikelyToken) -> dict[str, Any]:
    """Return a token with its log probability, in the form of chats and responses."""
    return {"token": likely.token.text, "logprob": likely.logprob, "bytes": list(likely.token.raw)}


def completion_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice: lists of one item per token."""
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
    """Return the token's text; if its bytes are not whole characters, the bytes in OpenAI's notation."""
    if likely.token.is_text:
        return likely.token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in likely.token.raw)
