"""Log probabilities as they arrive: in the chunks of a gateway's streams, and in the runs of reply logs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orcastream.client.result import LikelyToken, TokenLogprob
from orcastream.schemas.events import PromptRun
from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer


def of_chunk(told: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    """Yield those of a choice's `logprobs` in a chat or a completion, whose lists have one item per token."""
    if "content" in told:
        for one in told["content"] or ():
            yield TokenLogprob(one["logprob"], one["token"], likeliest=_sorted(map(_of_chat, one["top_logprobs"])))
        return
    for text, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        likeliest = _sorted(LikelyToken(value, name) for name, value in top.items())
        yield TokenLogprob(logprob, text, likeliest=likeliest)


def of_run(
    tokenizer: Tokenizer | None, tokens: Sequence[int], items: Sequence[Any], *, position: int
) -> Iterator[TokenLogprob]:
    """Yield those of a run's tokens, the first of which is at `position` in its choice."""
    for offset, (token, (own, likeliest)) in enumerate(zip(tokens, items, strict=True)):
        first = position + offset == 0
        others = tuple(LikelyToken(value, _text(tokenizer, other, first), other) for other, value in likeliest)
        yield TokenLogprob(own, _text(tokenizer, token, first), token, others)


def of_prompt_chunk(told: Sequence[Mapping[str, Any] | None], count: int) -> Iterator[TokenLogprob | None]:
    """Yield a choice's `prompt_logprobs` in a completion: per token of the prompt a map, whose first item is its
    own.

    After it come those of the `count` likeliest other tokens.
    """
    for tokens in told:
        if tokens is None:
            yield None
            continue
        all_told = [LikelyToken(one["logprob"], one["decoded_token"], int(name)) for name, one in tokens.items()]
        own = all_told[0]
        likeliest = all_told if len(all_told) <= count else all_told[1:]
        rank = tokens[str(own.id)]["rank"]
        yield TokenLogprob(own.logprob, own.text, own.id, _sorted(iter(likeliest)), rank)


def of_prompt_run(tokenizer: Tokenizer | None, run: PromptRun) -> Iterator[TokenLogprob | None]:
    """Yield those of a run of the prompt's tokens."""
    skip = int(run.position == 0)
    if skip:
        yield None
    told = of_run(tokenizer, run.tokens[skip:], run.logprobs[skip:], position=run.position + skip)
    ranks = run.ranks or (None,) * len(run.tokens)
    yield from (replace(one, rank=rank) for one, rank in zip(told, ranks[skip:], strict=True))


def _of_chat(told: Mapping[str, Any]) -> LikelyToken:
    return LikelyToken(told["logprob"], told["token"])


def _sorted(tokens: Iterator[LikelyToken]) -> tuple[LikelyToken, ...]:
    return tuple(sorted(tokens, key=lambda one: -one.logprob))


def _text(tokenizer: Tokenizer | None, token: int, first: bool) -> str:
    return "" if tokenizer is None else token_text(tokenizer, token, first=first).text
