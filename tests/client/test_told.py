"""Log probabilities, constraints and adapters over HTTP and Redis: the requests, and the typed results."""

import json
from itertools import count
from typing import Any

import pytest

from orcastream.client import AsyncReply, LikelyToken, TokenLogprob
from orcastream.client.told_logprobs import of_prompt_chunk, of_prompt_run
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.opening import Opening
from orcastream.gateway.replies.prompt_text import PromptText
from orcastream.schemas.events import PromptRun
from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer
from tests.client.conftest import Connect
from tests.client.cutting_proxy import CuttingProxy
from tests.gateway.conftest import TEXT, Stage
from tests.gateway.scripted_worker import Answer, logprobs_of
from tests.gateway.test_adapters import have

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def expected(tokenizer: Tokenizer, *, ids: bool, texts: bool, whole: bool = False) -> tuple[TokenLogprob, ...]:
    """Return the results for the scripted worker's numbers; `whole`: incomplete characters show their bytes."""

    def text(token: int) -> str:
        if not texts:
            return ""
        own = token_text(tokenizer, token)
        return own.text if own.is_text or not whole else "bytes:" + "".join(f"\\x{byte:02x}" for byte in own.raw)

    told = []
    for position, token in enumerate(tokenizer.encode(TEXT)):
        own, likeliest = logprobs_of(token, position)
        others = tuple(LikelyToken(value, text(one), one if ids else None) for one, value in likeliest)
        told.append(TokenLogprob(own, text(token), token if ids else None, others))
    return tuple(told)


async def told_of(reply: AsyncReply) -> tuple[TokenLogprob, ...]:
    """Return the data received piece by piece, which equals that of the whole."""
    pieces = [delta async for delta in reply]
    told = tuple(one for delta in pieces for one in delta.logprobs)
    result = await reply.result()
    assert "".join(delta.text for delta in pieces) == result.text
    assert result.choices[0].logprobs == told
    return told


@pytest.mark.parametrize("group", [1, 3])
async def test_log_probabilities_over_redis(stage: Stage, connect: Connect, group: int) -> None:
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], group=group, logprobs=True))
    bare = connect(stage.url).generate([5], logprobs=2)
    assert await told_of(bare) == expected(stage.tokenizer, ids=True, texts=False)
    reading = connect(stage.url, tokenizer=stage.tokenizer).generate("x", logprobs=2)
    assert await told_of(reading) == expected(stage.tokenizer, ids=True, texts=True)
    assert [request.payload.logprobs for request in worker.requests] == [2, 2]


@pytest.mark.parametrize("prompt", ["x", MESSAGES], ids=["completion", "chat"])
async def test_log_probabilities_over_http(stage: Stage, connect: Connect, prompt: Any) -> None:
    """Even over connections that break: each token is reported once."""
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], logprobs=True))
    served = await stage.gateway(disconnect_grace_s=60)
    told = expected(stage.tokenizer, ids=False, texts=True, whole=isinstance(prompt, str))
    assert await told_of(connect(served.url).generate(prompt, logprobs=2)) == told
    async with CuttingProxy(int(served.url.rpartition(":")[2]), count(1500, 97)) as proxy:
        assert await told_of(connect(proxy.url).generate(prompt, logprobs=2)) == told
    assert proxy.num_cut > 2
    assert [request.payload.logprobs for request in worker.requests] == [2, 2]


def told_of_prompt(tokenizer: Tokenizer, *, ids: list[int], texts: bool) -> tuple[TokenLogprob | None, ...]:
    """Return the results for the scripted worker's numbers of a prompt."""

    def text(token: int) -> str:
        return token_text(tokenizer, token).text if texts else ""

    told: list[TokenLogprob | None] = [None]
    for position, token in enumerate(ids[1:], start=1):
        own, likeliest = logprobs_of(token, position)
        others = tuple(LikelyToken(value, text(one), one) for one, value in likeliest)
        told.append(TokenLogprob(own, text(token), token, others, rank=1))
    return tuple(told)


async def test_log_probabilities_of_a_prompt_over_http_and_redis(stage: Stage, connect: Connect) -> None:
    """Even over connections that break: each is reported once."""
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)]))
    ids = stage.tokenizer.encode("what was asked")
    bare = await connect(stage.url).generate(ids, prompt_logprobs=2).result()
    assert (bare.prompt_logprobs, bare.choices[0].logprobs) == (
        told_of_prompt(stage.tokenizer, ids=ids, texts=False),
        (),
    )
    served = await stage.gateway(disconnect_grace_s=60)
    expected_text = told_of_prompt(stage.tokenizer, ids=ids, texts=True)
    for client in (connect(served.url), connect(stage.url, tokenizer=stage.tokenizer)):
        result = await client.generate(ids, prompt_logprobs=2).result()
        assert (result.text, result.prompt_logprobs) == (TEXT, expected_text)
    async with CuttingProxy(int(served.url.rpartition(":")[2]), count(1500, 97)) as proxy:
        result = await connect(proxy.url).generate(ids, prompt_logprobs=2).result()
    assert (result.text, result.prompt_logprobs) == (TEXT, expected_text)
    assert [request.payload.prompt_logprobs for request in worker.requests] == [2] * 4


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_a_prompt_token_is_reported_whether_or_not_among_the_likeliest(tokenizer: Tokenizer, most: int) -> None:
    likeliest = [[5, -0.5], [6, -1.0], [7, -2.0]][:most]
    items = (None, [-1.0, likeliest], [-4.0, likeliest], [-2.0, likeliest])
    run = PromptRun(0, (8, 6, 9, 7), items, (None, 2, 57, 3))
    prompt = PromptText(tokenizer, Opening(prompt_logprobs=most))
    prompt.take(run)
    (chunk,) = json.loads(encoded(prompt.told.fields())).values()
    told = list(of_prompt_run(tokenizer, run))
    assert list(of_prompt_chunk(chunk, most)) == told
    assert [one and (one.rank, len(one.likeliest)) for one in told] == [None, (2, most), (57, most), (3, most)]


async def test_no_log_probabilities_unless_requested(stage: Stage, connect: Connect) -> None:
    await stage.worker()
    assert await told_of(connect((await stage.gateway()).url).generate("x")) == ()
    assert await told_of(connect(stage.url).generate([5])) == ()


async def test_constraints_penalties_and_adapters_reach_the_worker(stage: Stage, connect: Connect) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    await have(stage, served, worker, "red")
    for client in (connect(served.url), connect(stage.url, tokenizer=stage.tokenizer)):
        reply = client.generate(
            MESSAGES, adapter="red", constraint={"regex": "[^#]+"}, frequency_penalty=0.5, logit_bias={5: -1}
        )
        assert (await reply.result()).text == TEXT
    for payload in (request.payload for request in worker.requests):
        assert payload.adapter == "red"
        assert payload.constraint is not None
        assert payload.constraint.regex == "[^#]+"
        assert (payload.frequency_penalty, payload.logit_bias) == (0.5, ((5, -1.0),))
    assert len(worker.requests) == 2
