"""The figures about the path around the engine come from a worker that serves."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orcastream import demo
from orcastream.bench.path.publishing import publishing
from orcastream.bench.path.through import through
from orcastream.bench.redis.own_redis import own_redis
from orcastream.broker.link import Link
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server


@pytest.fixture
async def link(redis_server: RedisServer) -> AsyncIterator[Link]:
    async with own_redis(redis_server.url) as (_, link):
        yield link


@one_server("embedded")
async def test_a_worker_publishes_what_the_paced_engine_makes(link: Link, redis_server: RedisServer) -> None:
    async with asyncio.timeout(PATIENCE_S):  # it waits for tokens, and a worker whose engine failed produces none
        found = await publishing(redis_server.url, link, running=4, interval_s=0.01, seconds=0.3)
    assert found.events >= 4
    assert found.loop_us > 0
    assert await link.call("DBSIZE") == 0, "nothing remains"


@pytest.mark.server
async def test_the_engine_alone_and_a_site_answer_the_same_workload() -> None:
    found = await through(model=str(demo.MODEL_DIR), workload="equal_size", rate=None, threads=1, rounds=1, batch=16)
    assert [len(one.ttft_ms) for one in (*found.alone, *found.served)] == [16, 16]
    assert found.ratios == [found.throughput]
    assert found.throughput > 0
