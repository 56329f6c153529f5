"""A connection that breaks while a suspect waits for its turn: it begins over the next one."""

import asyncio
import threading

import pytest

from orcastream.broker.lease import SUSPECT_MS
from orcastream.engine import TokenEvent
from orcastream.schemas.keys import GROUP
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer

pytestmark = one_server("system")


async def test_a_suspect_runs_although_the_connection_broke_before_its_turn(
    producer: Producer, redis_server: RedisServer, count_prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch has begun, and an iteration of another request is under way."""
    redis, stream = producer.redis, producer.keys.requests("normal")
    suspect = producer.post(count_prompt, max_tokens=3)
    redis.xgroup_create(stream, GROUP, "0")
    [(_, [(entry_id, _)])] = redis.xreadgroup(GROUP, "dead", {stream: ">"})
    other = producer.post(count_prompt, max_tokens=3000, ignore_eos=True)
    engine = demo_engine()
    worker = Worker(own_settings(drain_grace_s=0), redis_server.url, producer.keys, "w1", engine, None)
    hold, stands, release, interrupted = threading.Event(), threading.Event(), threading.Event(), asyncio.Event()
    step, engine_loop = engine.step, worker._parts.engine_loop
    pause, resume = engine_loop.pause, engine_loop.resume

    def stand() -> list[TokenEvent]:
        if hold.is_set():
            stands.set()
            release.wait()
        return step()

    def cut_at_the_first_pause() -> None:
        if not hold.is_set():
            hold.set()
            stands.wait(PATIENCE_S)
            redis.client_kill_filter(_type="normal", skipme=True)
        pause()

    def told_to_resume() -> None:
        resume()
        if hold.is_set():
            interrupted.set()

    monkeypatch.setattr(engine, "step", stand)
    monkeypatch.setattr(engine_loop, "pause", cut_at_the_first_pause)
    monkeypatch.setattr(engine_loop, "resume", told_to_resume)
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not redis.exists(producer.keys.reply(other)):  # noqa: ASYNC110 (it is the server's)
                await asyncio.sleep(0.005)
            redis.xclaim(stream, GROUP, "dead", 0, [entry_id], idle=SUSPECT_MS, retrycount=2, justid=True)
            await interrupted.wait()
            release.set()
            fold = await asyncio.to_thread(producer.read, suspect)
            assert fold.terminal is not None
            assert (fold.terminal.error, len(fold.tokens[0])) == (None, 3)
    finally:
        release.set()
        worker.drain()
        await running
