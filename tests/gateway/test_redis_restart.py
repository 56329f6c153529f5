"""A Redis restart in the middle of a stream does not end the stream."""

import asyncio
from collections.abc import Callable

import pytest

from tests.gateway.conftest import MODEL, TEXT, Stage
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer


@pytest.mark.parametrize("published", [0, 1, 7])
async def test_streams_continue_from_their_positions(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], published: int
) -> None:
    server = own_redis(aof="always")
    stage = stage_of(server.url)
    gate = Gate(published)
    ids = stage.tokenizer.encode(TEXT)
    await stage.worker(lambda request: Answer([ids] * request.payload.n, gate=gate))
    served = await stage.gateway()
    whole = asyncio.create_task(served.openai().completions.create(model=MODEL, prompt="x"))
    body = {"model": MODEL, "prompt": "x", "stream": True}
    async with served.http().stream("POST", "/v1/completions", json=body) as response:
        await gate.reached(published)
        await asyncio.to_thread(server.restart)
        await gate.open()
        events = [event async for event in read(response)]
    assert joined(events) == TEXT
    assert events[-1].done
    assert (await whole).choices[0].text == TEXT


async def test_a_request_posted_while_redis_is_away_is_accepted_once_it_is_back(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]
) -> None:
    server = own_redis(aof="always")
    stage = stage_of(server.url)
    worker = await stage.worker()
    served = await stage.gateway(require_worker=False, redis_patience_s=PATIENCE_S)
    await asyncio.to_thread(server.kill)
    asking = asyncio.create_task(served.openai().completions.create(model=MODEL, prompt="x"))
    await asyncio.to_thread(server.start)
    assert (await asking).choices[0].text == TEXT
    assert len(worker.requests) == 1
