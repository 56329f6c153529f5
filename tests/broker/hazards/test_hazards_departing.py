"""The hazard of clients that leave and return, with real gateways, because gateways cancel."""

import asyncio
from collections.abc import Callable

import pytest

from orcastream.schemas.errors import ErrorCode
from tests.gateway.conftest import TEXT, Stage
from tests.gateway.replies.test_disconnects import cancel_key, departed, ending, hold_grace, leave_after
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

GRACE_S = 5.0
"""Of the test whose times are part of the grace: a machine that stands still for seconds changes nothing."""


async def test_hazard_20_cancel_on_disconnect_against_resume(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client leaves one gateway and returns to another; the first gateway's grace period ends only then."""
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    grace_over = hold_grace(monkeypatch, first, second)
    request_id, seen = await leave_after(first, 3)
    headers = {"Last-Event-ID": seen[-1].last_id or ""}
    async with second.http().stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as response:
        assert response.status_code == 200
        grace_over.set()
        await departed(first)
        assert not await cancel_key(stage, request_id)
        await gate.open()
        rest = [event async for event in read(response)]
    assert joined(seen) + joined(rest) == TEXT


async def test_hazard_20_nobody_comes_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same departure cancels the request if its client stays away."""
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(4)))
    first, second = await stage.gateway(), await stage.gateway()
    grace_over = hold_grace(monkeypatch, first, second)
    request_id, _ = await leave_after(first, 3)
    assert not await cancel_key(stage, request_id)
    grace_over.set()
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED
    assert await cancel_key(stage, request_id)


async def test_hazard_20_the_second_hop(stage: Stage) -> None:
    """A client leaves A, reads at B, leaves B, and returns to A: the grace period counts from leaving B, not A."""
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = [await stage.gateway(disconnect_grace_s=GRACE_S) for _ in range(2)]
    request_id, seen = await leave_after(first, 3)
    left_at = asyncio.get_running_loop().time()
    path, headers = f"/v1/requests/{request_id}/events", {"Last-Event-ID": seen[-1].last_id or ""}
    async with second.http() as http, http.stream("GET", path, headers=headers):
        await asyncio.sleep(left_at + 0.75 * GRACE_S - asyncio.get_running_loop().time())
    await asyncio.sleep(left_at + 1.15 * GRACE_S - asyncio.get_running_loop().time())
    async with first.http().stream("GET", path, headers=headers) as response:
        await asyncio.gather(departed(first), departed(second))
        assert not await cancel_key(stage, request_id)
        await gate.open()
        rest = [event async for event in read(response)]
    assert joined(seen) + joined(rest) == TEXT


async def test_hazard_20_redis_is_away(own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]) -> None:
    """No client can return while Redis is away: the grace period pauses, and the client's retry waits for Redis."""
    server = own_redis(aof="always")
    stage = stage_of(server.url)
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    options = {"disconnect_grace_s": 1, "redis_patience_s": PATIENCE_S}
    first, second = await stage.gateway(**options), await stage.gateway(**options)
    request_id, seen = await leave_after(first, 3)
    await asyncio.to_thread(server.kill)
    path, headers = f"/v1/requests/{request_id}/events", {"Last-Event-ID": seen[-1].last_id or ""}
    http = second.http()
    coming_back = asyncio.create_task(http.send(http.build_request("GET", path, headers=headers), stream=True))
    await asyncio.sleep(2.5)
    await asyncio.to_thread(server.start)
    response = await coming_back
    assert response.status_code == 200
    await asyncio.gather(departed(first), departed(second))
    assert not await cancel_key(stage, request_id)
    await gate.open()
    rest = [event async for event in read(response)]
    assert joined(seen) + joined(rest) == TEXT
