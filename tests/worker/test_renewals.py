"""Leases are renewed in time, whatever else Redis refuses."""

import asyncio
from typing import Any

import pytest

from orcastream.broker.back_off import BackOff
from orcastream.broker.lease import Leases
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer

pytestmark = one_server("embedded")


class NoEnd(BackOff):
    """Whoever pauses after a failure does so until the test ends."""

    def failed(self) -> float:
        return 10 * PATIENCE_S


async def test_a_worker_whose_report_is_refused_renews_its_leases(
    producer: Producer, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where Redis is out of memory, or the node that holds the report is down; here its key holds no hash."""
    renewals: asyncio.Queue[None] = asyncio.Queue()
    renew = Leases.renew

    async def told(*arguments: Any) -> Any:
        renewals.put_nowait(None)
        return await renew(*arguments)

    monkeypatch.setattr(Leases, "renew", told)
    monkeypatch.setattr("orcastream.worker.serving.BackOff", NoEnd)
    producer.redis.set(producer.keys.worker("w1"), "no hash")
    producer.post([5, 6, 7], max_tokens=3000, ignore_eos=True)
    settings = own_settings(lease_ms=500, drain_grace_s=0)
    worker = Worker(settings, redis_server.url, producer.keys, "w1", demo_engine(), None)
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(4):
                await renewals.get()
    finally:
        worker.drain()
        await running
