"""The gateway's link to a Redis that is down."""

import asyncio
import time
from contextlib import suppress
from hashlib import sha1
from typing import Any

import pytest
from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import Closed, LinkLost
from orcastream.broker.link import Link
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.scripts import Script
from tests.broker.conftest import OpenLink
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer


async def test_callers_that_wait_for_a_redis_that_is_down_retry_seldom_and_together() -> None:
    num_tries = 0

    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_tries
        num_tries += 1
        writer.close()

    port = free_port()
    async with await asyncio.start_server(refuse, "127.0.0.1", port):
        redis = RedisLink(f"redis://127.0.0.1:{port}", "gateway-1")
        until = time.monotonic() + 1.5
        outcomes = await asyncio.gather(*(redis.wait(until) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(outcome, LinkLost) for outcome in outcomes)
    assert 2 <= num_tries <= 10  # pauses of at least 25, 50, 100, 200, 400 and then 500 ms


async def test_a_broken_link_is_reopened_at_once(redis_server: RedisServer) -> None:
    redis = RedisLink(redis_server.url, "gateway-1")
    first = await redis.get()
    await first.close()
    with pytest.raises(LinkLost):
        await first.call("PING")
    second = await redis.get()
    assert await second.call("PING") == b"PONG"
    await redis.close()


async def test_a_master_that_waits_for_replicas_is_waited_for(redis_server: RedisServer) -> None:
    redis = RedisLink(redis_server.url, "gateway-1")
    link = await redis.get()
    script = Script("write", text := "return redis.call('SET', KEYS[1], '1')", sha1(text.encode()).hexdigest())
    attempts: list[ResponseError] = []

    async def write(link: Connection) -> Any:
        try:
            return await link.run(script, ["key"], [])
        except ResponseError as error:
            attempts.append(error)
            if len(attempts) == 2:
                await link.call("CONFIG", "SET", "min-replicas-to-write", 0)
            raise

    await link.call("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            await redis.patiently(write, time.monotonic())
        assert await redis.patiently(write, time.monotonic() + PATIENCE_S) == b"OK"
    finally:
        await link.call("CONFIG", "SET", "min-replicas-to-write", 0)
        await redis.close()
    assert len(attempts) == 2


async def test_a_server_that_runs_a_slow_script_is_waited_for(redis_server: RedisServer, open_link: OpenLink) -> None:
    redis = RedisLink(redis_server.url, "gateway-1")
    other, killer = await open_link(redis_server.url), await open_link(redis_server.url)
    attempts: list[ResponseError] = []

    async def read(link: Connection) -> Any:
        try:
            return await link.call("EXISTS", "key")
        except ResponseError as error:
            attempts.append(error)
            if len(attempts) == 2:
                await killer.call("SCRIPT", "KILL")
            raise

    link = await redis.get()
    (_, limit_ms) = await link.call("CONFIG", "GET", "lua-time-limit")
    await link.call("CONFIG", "SET", "lua-time-limit", 10)
    slow = asyncio.create_task(other.call("EVAL", "while true do end", 0))
    try:
        while not attempts:  # the script has not begun yet
            with suppress(ResponseError):
                await redis.patiently(read, time.monotonic())
        assert await redis.patiently(read, time.monotonic() + PATIENCE_S) == 0
    finally:
        with pytest.raises(ResponseError):
            await slow
        await link.call("CONFIG", "SET", "lua-time-limit", limit_ms)
        await redis.close()
    assert len(attempts) == 2


async def test_closing_a_link_ends_all_waits_for_it() -> None:
    redis = RedisLink(f"redis://127.0.0.1:{free_port()}", "gateway-1")
    with pytest.raises(LinkLost):
        await redis.get()
    waiting = asyncio.create_task(redis.wait(time.monotonic() + 3600))
    await redis.close()
    with pytest.raises(Closed):
        await waiting


async def test_the_servers_clock_is_known_whatever_the_host_clock_does(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisLink(redis_server.url, "gateway-1")
    link = await redis.get()
    time_of_day = time.time
    monkeypatch.setattr(time, "time", lambda: time_of_day() - 3600)
    assert abs(redis.now_ms - await link.server_time_ms()) < 60_000
    await redis.close()


async def test_a_servers_clock_that_was_set_is_read_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisLink(redis_server.url, "gateway-1")
    await redis.get()
    time_ms, hour_ms = Link.server_time_ms, 3_600_000

    async def ahead(link: Link) -> int:
        return await time_ms(link) + hour_ms

    monkeypatch.setattr(Link, "server_time_ms", ahead)
    before_ms = redis.now_ms
    async with asyncio.timeout(PATIENCE_S):
        while redis.now_ms < before_ms + hour_ms:
            await (await redis.get()).call("PING")
            await asyncio.sleep(0.01)
    await redis.close()
