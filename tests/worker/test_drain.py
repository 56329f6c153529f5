"""A worker that gets the stop signal ends in time, whatever the state of Redis or its engine."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from orcastream.broker.lease import was_handed_over
from orcastream.engine import TokenEvent
from orcastream.schemas.events import Output, Started
from orcastream.schemas.keys import GROUP
from orcastream.worker.engine_loop import EngineFailed
from orcastream.worker.intake import Intake
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import LONG, Producer

pytestmark = one_server("system")


@contextmanager
def out_of_memory(producer: Producer) -> Iterator[None]:
    """Redis refuses every write that needs memory."""
    producer.redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        producer.redis.config_set("maxmemory", 0)


def test_drain_ends_while_redis_is_out_of_memory(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    worker = start_worker(drain_grace_s=1, stall_timeout_s=3600)
    worker.wait_serving()
    request_id = producer.post(count_prompt, **LONG)
    for _, event in producer.events(request_id):
        if isinstance(event, Output):
            break
    with out_of_memory(producer):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    start_worker()
    assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, **LONG)
    producer.wait_empty()


def test_a_worker_that_is_still_loading_exits_at_once(producer: Producer, start_worker: StartWorker) -> None:
    worker = start_worker()
    worker.wait_catching(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log


async def test_drain_ends_while_the_engine_hangs(
    producer: Producer, redis_server: RedisServer, count_prompt: list[int]
) -> None:
    engine = demo_engine()
    hanging, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> list[TokenEvent]:
        loop.call_soon_threadsafe(hanging.set)
        release.wait()
        return []

    engine.step = hang  # type: ignore[method-assign]
    settings = own_settings(lease_ms=1000, drain_grace_s=0, stall_timeout_s=1)
    worker = Worker(settings, redis_server.url, producer.keys, "hangs", engine, None)
    request_id = producer.post(count_prompt, **LONG)
    running = asyncio.create_task(worker.run())
    await hanging.wait()
    worker.drain()
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((EngineFailed, ExceptionGroup)):
                await running
    finally:
        release.set()
    assert producer.redis.xpending(producer.keys.requests("normal"), "workers")["pending"] == 1, request_id


def test_a_draining_worker_runs_no_new_requests(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The worker waits for requests when it gets the stop signal; later requests go to other workers."""
    leaving = start_worker()
    name = leaving.wait_serving()
    leaving.signal(signal.SIGTERM)
    while "draining" not in leaving.log:
        assert leaving.running, leaving.log
        time.sleep(0.01)
    request_id = producer.post(count_prompt, max_tokens=2)
    assert leaving.wait() == 0
    heir = start_worker().wait_serving()
    started = [event for _, event in producer.events(request_id) if isinstance(event, Started)]
    assert [event.worker for event in started] == [heir], f"{name} was draining"
    producer.wait_empty()


@pytest.fixture
async def idle_worker(
    producer: Producer, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Worker, asyncio.Task[None]]:
    """A worker in this process that waits for requests, longer than its connection would last."""
    monkeypatch.setattr(Intake, "_pause_s", lambda _: 60.0)
    engine = demo_engine()
    settings = own_settings(lease_ms=1000)
    worker = Worker(settings, redis_server.url, producer.keys, "idle", engine, None)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE_S):
        while not _claims_wait(producer):  # noqa: ASYNC110 (the state is the server's)
            await asyncio.sleep(0.005)
    return worker, running


def _claims_wait(producer: Producer) -> bool:
    clients = producer.redis.client_list()
    return any(client["name"] == "idle:claim" and "b" in client["flags"] for client in clients)


async def test_drain_does_not_wait_for_the_blocked_claim(
    idle_worker: tuple[Worker, asyncio.Task[None]], caplog: pytest.LogCaptureFixture
) -> None:
    worker, running = idle_worker
    with caplog.at_level("INFO"):
        worker.drain()
        await running
    said = [record.message for record in caplog.records if record.name == "orcastream.worker"]
    assert said == ["draining", "drained"]


async def test_a_request_claimed_as_the_drain_begins_is_handed_over_at_once(
    producer: Producer, idle_worker: tuple[Worker, asyncio.Task[None]], count_prompt: list[int]
) -> None:
    worker, running = idle_worker
    worker.drain()
    request_id = producer.post(
        count_prompt, max_tokens=2
    )  # before the worker's task runs again: its claim still blocks
    await running
    (pending,) = producer.redis.xpending_range(producer.keys.requests("normal"), GROUP, "-", "+", 5)
    assert (pending["consumer"], pending["times_delivered"]) == (b"idle", 0)
    assert was_handed_over(pending["time_since_delivered"])
    assert not producer.redis.exists(producer.keys.reply(request_id))


async def test_what_runs_is_handed_over_although_redis_refuses_to_say_what_else_is_pending(
    producer: Producer, redis_server: RedisServer, count_prompt: list[int]
) -> None:
    """One class's key holds no stream; in a Cluster, the node of another lane may be down."""
    worker = Worker(own_settings(drain_grace_s=0), redis_server.url, producer.keys, "w1", demo_engine(), None)
    request_id = producer.post(count_prompt, max_tokens=3000, ignore_eos=True)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE_S):
        while not producer.redis.exists(producer.keys.reply(request_id)):  # noqa: ASYNC110 (the state is the server's)
            await asyncio.sleep(0.005)
    producer.redis.set(producer.keys.requests("low"), "no stream")
    worker.drain()
    await running
    (pending,) = producer.redis.xpending_range(producer.keys.requests("normal"), GROUP, "-", "+", 5)
    assert was_handed_over(pending["time_since_delivered"])
    assert not producer.redis.exists(producer.keys.worker("w1"))
