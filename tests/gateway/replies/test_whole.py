"""Answers that are collected whole: log probabilities are encoded as they arrive, and equal those encoded at once."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from orcastream.broker.subscription import Update
from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.logprobs import TokenLogprob, chat_logprobs, completion_logprobs
from orcastream.gateway.replies.answer import ReadReply, gather
from orcastream.gateway.replies.answer_room import AnswerRoom, AnswerTooLarge
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.token_logprobs import told
from orcastream.schemas.events import Ending, Run, Started, Terminal, Usage
from orcastream.schemas.stopping import FinishReason
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import TEXT
from tests.gateway.scripted_worker import logprobs_of

TEXTS = (TEXT * 9, "plain")
STARTED = Started("w1", "tiny", "default", "normal", "normal 1-0", 0, 1, n=len(TEXTS))
FIELDS: dict[str, Callable[[Sequence[TokenLogprob]], dict[str, Any]]] = {
    "cmpl-1": completion_logprobs,
    "chatcmpl-1": chat_logprobs,
}
"""The field `logprobs` of all tokens at once, by the id of an answer."""


def reply_of(choices: list[list[int]], group: int) -> list[Update]:
    """Yield updates with `group` tokens of each choice, the last ones with the end."""
    none, length = (0,) * len(choices), max(map(len, choices))
    updates = [Update(none, none, 1, started=STARTED)]
    for begin in range(0, length, group):
        some = [(number, tuple(tokens[begin : begin + group])) for number, tokens in enumerate(choices)]
        runs = tuple(
            Run(number, begin, tokens, tuple(logprobs_of(token, at) for at, token in enumerate(tokens, begin)))
            for number, tokens in some
            if tokens
        )
        updates.append(Update(none, none, 1, runs))
    endings = tuple(Ending(FinishReason.STOP, len(tokens)) for tokens in choices)
    updates[-1] = updates[-1]._replace(terminal=Terminal(endings, Usage(1, sum(map(len, choices)))))
    return updates


async def written(request_id: str, updates: list[Update], tokenizer: Tokenizer, most_bytes: int | None = None) -> bytes:
    """Return the answer; all updates are available at once."""

    async def come() -> AsyncGenerator[list[Update]]:
        yield updates

    shape = AnswerShape(request_id, "tiny", 1_795_270_285)
    choices, usage = await gather([ReadReply(come(), ReplyText(tokenizer), shape)], AnswerRoom(most_bytes))
    return encoded(shape.whole(choices, usage))


def all_told(tokenizer: Tokenizer, ids: list[int]) -> list[TokenLogprob]:
    tokens, text = [], ChoiceText(tokenizer)
    for position, token in enumerate(ids):
        items, before = logprobs_of(token, position), text.length
        text.push((token,))
        tokens.append(told(tokenizer, token, items, position=position, brought=(before, text.length)))
    return tokens


@pytest.mark.parametrize("group", [1, 5, 17, 1000])
@pytest.mark.parametrize("request_id", FIELDS)
async def test_incremental_encoding_equals_encoding_at_once_byte_for_byte(
    tokenizer: Tokenizer, request_id: str, group: int
) -> None:
    choices = [tokenizer.encode(text) for text in TEXTS]
    body = await written(request_id, reply_of(choices, group), tokenizer)
    for ids in choices:
        field = FIELDS[request_id](all_told(tokenizer, ids))
        assert b'"logprobs":' + encoded(field) in body


async def test_a_choice_without_tokens_has_no_log_probabilities(tokenizer: Tokenizer) -> None:
    for request_id in FIELDS:
        body = await written(request_id, reply_of([tokenizer.encode("x"), []], 1), tokenizer)
        assert body.count(b'"logprobs":{') == body.count(b'"logprobs":null') == 1


@pytest.mark.parametrize("group", [1, 1000])
@pytest.mark.parametrize("request_id", FIELDS)
async def test_received_tokens_count_before_the_end(tokenizer: Tokenizer, request_id: str, group: int) -> None:
    """The count never exceeds the bytes of the answer."""
    updates = reply_of([tokenizer.encode(text) for text in TEXTS], group)
    size = len(await written(request_id, updates, tokenizer))
    assert len(await written(request_id, updates, tokenizer, size)) == size
    unended = [*updates[:-1], updates[-1]._replace(terminal=None)]
    with pytest.raises(AnswerTooLarge):
        await written(request_id, unended, tokenizer, size // 2)
