"""A request handed over while Redis accepts no writes is still served, by the same worker if it is alone."""

import asyncio
from collections.abc import Callable

import pytest

from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer
from tests.worker.standing_engine import standing_engine

pytestmark = one_server("system")

_HANDED_OVER = "engine stands still, requests handed over"


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (it is the server's, or told by the log alone)
        await asyncio.sleep(0.005)


async def test_a_refused_hand_over_leaves_nothing_behind(
    producer: Producer, redis_server: RedisServer, count_prompt: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """No other worker can take over the requests that this one released while its engine stalled."""
    engine, release = standing_engine()
    settings = own_settings(lease_ms=1000, stall_timeout_s=3600)
    worker = Worker(settings, redis_server.url, producer.keys, "w1", engine, None)
    request_id = producer.post(count_prompt, max_tokens=3)
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _until(lambda: bool(producer.redis.exists(producer.keys.reply(request_id))))
            producer.redis.config_set("min-replicas-to-write", 1)
            await _until(lambda: _HANDED_OVER in caplog.messages)
            told = caplog.messages.index(_HANDED_OVER)
            await _until(lambda: "Redis refused" in caplog.messages[told:])
            producer.redis.config_set("min-replicas-to-write", 0)
            release.set()
            fold = await asyncio.to_thread(producer.read, request_id)
            assert fold.terminal is not None
            assert fold.terminal.error is None
    finally:
        producer.redis.config_set("min-replicas-to-write", 0)
        release.set()
        worker.drain()
        await running
