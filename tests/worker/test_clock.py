"""Deadlines follow the clock of the Redis server, whatever the worker's host clock says."""

import asyncio
import time
from collections.abc import Callable

import pytest

from orcastream.schemas.errors import ErrorCode
from orcastream.worker.session import Session
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer

pytestmark = one_server("embedded")

HOUR_S = 3600


@pytest.mark.parametrize("error_s", [HOUR_S, -HOUR_S, -8 * 24 * HOUR_S], ids=["fast", "slow", "a week slow"])
async def test_a_wrong_host_clock_ends_no_request(
    producer: Producer,
    redis_server: RedisServer,
    undisturbed: Callable,
    count_prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    error_s: int,
) -> None:
    engine = demo_engine()
    request_id = producer.post(count_prompt, max_tokens=40)
    settings = own_settings(lease_ms=1000, drain_grace_s=0)
    worker = Worker(settings, redis_server.url, producer.keys, "clock", engine, None)
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + error_s)
    running = asyncio.create_task(worker.run())
    fold = await asyncio.to_thread(producer.read, request_id)
    for timeout_s in (2, 8, 32):  # the shortest deadline within which this machine produces a token
        late_id = producer.post(count_prompt, max_tokens=3900, ignore_eos=True, timeout_s=timeout_s - error_s)
        late = await asyncio.to_thread(producer.read, late_id)
        assert late.terminal is not None
        assert late.terminal.error is ErrorCode.EXPIRED
        if late.tokens[0]:
            break
    worker.drain()
    await running
    assert fold.terminal is not None
    assert fold.terminal.error is None, fold.terminal
    assert fold.tokens[0] == undisturbed(count_prompt, max_tokens=40)
    assert 0 < late.terminal.usage.completion_tokens < 3900


@pytest.mark.parametrize("ahead_s", [HOUR_S, -8 * 24 * HOUR_S], ids=["back", "forward by a week"])
async def test_a_servers_clock_set_while_a_worker_is_idle_ends_no_request(
    producer: Producer,
    redis_server: RedisServer,
    undisturbed: Callable,
    count_prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: int,
) -> None:
    """It reads the clock seldom while no deadline depends on it."""
    engine = demo_engine()
    settings = own_settings(drain_grace_s=0)
    worker = Worker(settings, redis_server.url, producer.keys, "clock", engine, None)
    set_clock = Session._set_clock

    def before(session: Session, server_ms: int) -> None:
        set_clock(session, server_ms + ahead_s * 1000)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_set_clock", before)  # not that of sweeps, which is read in each
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE_S):
            while not producer.redis.exists(producer.keys.worker("clock")):  # noqa: ASYNC110 (Redis knows)
                await asyncio.sleep(0.01)
    request_id = producer.post(count_prompt, max_tokens=40)
    fold = await asyncio.to_thread(producer.read, request_id)
    worker.drain()
    await running
    assert fold.terminal is not None
    assert fold.terminal.error is None, fold.terminal
    assert fold.tokens[0] == undisturbed(count_prompt, max_tokens=40)
