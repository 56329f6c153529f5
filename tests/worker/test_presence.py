"""What workers publish about themselves in Redis, and what remains after they leave."""

import asyncio
import time

from orcastream.broker.cancel import Control, wake_up
from orcastream.schemas.keys import CLASSES, GROUP
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.redis_waiting import wait_until
from tests.worker.conftest import StartWorker
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer
from tests.worker.standing_engine import standing_engine

pytestmark = one_server("embedded")


def test_consumers_of_dead_workers_are_deleted(producer: Producer, start_worker: StartWorker) -> None:
    dead = start_worker(lease_ms=500)
    dead_name = dead.wait_serving().encode()
    dead.kill()
    name = start_worker(lease_ms=500).wait_serving().encode()
    give_up = time.monotonic() + PATIENCE_S
    while dead_name in (names := _consumers(producer)):
        assert time.monotonic() < give_up, f"{dead_name!r} is still there: {names}"
        time.sleep(0.05)
    assert name in names


def _consumers(producer: Producer) -> set[bytes]:
    streams = [producer.keys.requests(priority_class) for priority_class in CLASSES]
    return {consumer["name"] for key in streams for consumer in producer.redis.xinfo_consumers(key, GROUP)}


def test_an_idle_worker_sends_few_commands(producer: Producer, start_worker: StartWorker) -> None:
    """Counts commands from one heartbeat to the fourth after it, including commands inside scripts."""
    worker = producer.keys.worker(start_worker(lease_ms=5000).wait_serving())
    namespace, beats, commands = worker.partition(":")[0], 0, 0
    with producer.redis.monitor() as monitor:
        for seen in monitor.listen():
            beats += seen["command"].startswith(f"HSET {worker} ")
            commands += beats > 0 and namespace in seen["command"]
            if beats == 5:
                break
    assert commands <= 4 * 8


async def test_a_worker_with_a_stalled_engine_reports_it(producer: Producer, redis_server: RedisServer) -> None:
    engine, release = standing_engine()
    settings = own_settings(lease_ms=500)
    worker = Worker(settings, redis_server.url, producer.keys, "hangs", engine, None)
    running = asyncio.create_task(worker.run())
    request_id = producer.post([5, 6, 7], max_tokens=2)
    await _says(producer, "stalled")
    release.set()
    await _says(producer, "serving")
    assert (await asyncio.to_thread(producer.read, request_id)).terminal is not None
    worker.drain()
    await running


def test_a_worker_that_hears_of_its_own_hand_over_continues(producer: Producer, start_worker: StartWorker) -> None:
    worker = start_worker()
    name = worker.wait_serving()
    request_id = producer.post([5, 6, 7], max_tokens=4000, ignore_eos=True)
    next(producer.events(request_id))
    producer.redis.set(producer.keys.cancel(request_id), "1", ex=60)
    for control in (Control("waiting", name), Control("cancel", request_id)):
        producer.redis.execute_command(*wake_up(producer.keys, control))
    assert producer.read(request_id).terminal is not None, "messages before the cancel have been read by now"
    fold = producer.read(producer.post([5, 6, 7], max_tokens=2))
    assert fold.started is not None
    assert fold.started.worker == name
    wait_until(lambda: producer.redis.hget(producer.keys.worker(name), "state") == b"serving")


async def _says(producer: Producer, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            said = await asyncio.to_thread(producer.redis.hget, producer.keys.worker("hangs"), "state")
            if said == state.encode():
                return
            await asyncio.sleep(0.02)


def test_context_and_cache_limits_are_distinguished(producer: Producer, start_worker: StartWorker) -> None:
    name = start_worker(max_model_len=200, kv_cache_memory=1 << 18, lease_ms=60_000).wait_serving()
    said = producer.redis.hgetall(producer.keys.worker(name))
    assert said[b"max_model_len"] == b"200"
    assert 0 < int(said[b"max_cached_tokens"]) < 200
