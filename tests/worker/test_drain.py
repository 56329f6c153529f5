"""A worker told to stop ends in time, whatever state Redis or its engine is in."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import demo
from engine import EngineConfig, OrcaEngine, TokenEvent
from schemas.events import Output
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from worker.engine_loop import EngineFailed
from worker.settings import WorkerSettings
from worker.worker import Worker

pytestmark = one_server("system")


@contextmanager
def out_of_memory(producer: Producer) -> Iterator[None]:
    """Redis refuses every write that takes memory."""
    producer.redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        producer.redis.config_set("maxmemory", 0)


def test_drain_ends_while_redis_is_out_of_memory(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    worker = start_worker(drain_grace_s=1)
    worker.wait_serving()
    request_id = producer.post(count_prompt, **LONG)
    for _, event in producer.events(request_id):
        if isinstance(event, Output):
            break
    with out_of_memory(producer):
        worker.signal(signal.SIGTERM)
        assert worker.wait(timeout_s=20) == 0
    start_worker()
    assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, **LONG)
    producer.wait_empty()


def test_a_worker_that_is_still_loading_just_leaves(producer: Producer, start_worker: StartWorker) -> None:
    worker = start_worker()
    worker.wait_catching(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    assert worker.wait(timeout_s=30) == 0
    assert "Traceback" not in worker.log


async def test_drain_ends_while_the_engine_hangs(
    producer: Producer, redis_server: RedisServer, count_prompt: list[int]
) -> None:
    engine = OrcaEngine.load(EngineConfig(model=str(demo.MODEL_DIR), device="cpu", self_check=False))
    hanging, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> list[TokenEvent]:
        loop.call_soon_threadsafe(hanging.set)
        release.wait()
        return []

    engine.step = hang  # type: ignore[method-assign]
    settings = WorkerSettings(lease_ms=1000, drain_grace_s=0, stall_timeout_s=1, _env_file=None)  # type: ignore[call-arg]
    worker = Worker(settings, redis_server.url, producer.keys, "hangs", engine, None)
    request_id = producer.post(count_prompt, **LONG)
    running = asyncio.create_task(worker.run())
    await hanging.wait()
    worker.drain()
    try:
        async with asyncio.timeout(20):
            with pytest.raises((EngineFailed, ExceptionGroup)):
                await running
    finally:
        release.set()
    assert producer.redis.xpending(producer.keys.requests("normal"), "workers")["pending"] == 1, request_id
