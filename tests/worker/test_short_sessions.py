"""Sessions that break right after they were opened, each time."""

import asyncio
from collections.abc import Callable

import pytest

from orcastream.worker.worker import Worker
from tests.pauses import Pauses
from tests.redis_server import RedisServer, one_server
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer

pytestmark = one_server("embedded")


async def test_pauses_grow_while_sessions_break_right_after_opening(
    own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis closes the connection of whoever would get more than its `client-output-buffer-limit` allows."""
    server = own_redis(options=("--client-output-buffer-limit", "normal", "3kb", "0", "0"))
    producer = Producer(server.url)
    producer.add({"payload": b"x" * 40_000})
    pauses = Pauses(monkeypatch, "orcastream.worker.worker")
    engine = demo_engine()
    settings = own_settings(lease_ms=1000, drain_grace_s=0)
    worker = Worker(settings, server.url, producer.keys, "w1", engine, None)
    running = asyncio.create_task(worker.run())
    await pauses.reach(0.5)
    worker.drain()
    await running
    producer.redis.close()
