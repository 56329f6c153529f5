"""Log probabilities as the two endpoints write them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    likely, the likeliest first."""

    chosen: LikelyToken
    text_offset: int
    likeliest: Sequence[LikelyToken]


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


def echoed(prompt: Sequence[TokenLogprob], count: int | None) -> list[TokenLogprob]:
    """What `logprobs` of a choice begin with where the prompt is echoed: with `count` likeliest ones of each token.

    None: nothing was asked for.
    """
    return [] if count is None else [replace(one, likeliest=one.likeliest[:count]) for one in prompt]


def prompt_logprobs(prompt: Sequence[TokenLogprob], count: int | None) -> dict[str, Any]:
    """vLLM's field of that name, in which each token's own comes first; empty where `count` is None."""
    return {} if count is None else {"prompt_logprobs": [_by_id(one, count) for one in prompt]}


def _by_id(one: TokenLogprob, count: int) -> dict[str, Any] | None:
    if one.chosen.logprob is None:
        return None
    ranks = {likely.id: rank for rank, likely in enumerate(one.likeliest, start=1)}
    likeliest = [likely for likely in one.likeliest[:count] if likely.id != one.chosen.id]
    return {
        str(each.id): {"logprob": each.logprob, "rank": ranks.get(each.id), "decoded_token": each.token.text}
        for each in (one.chosen, *likeliest)
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
