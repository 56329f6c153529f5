"""Connections are reused only after their response has been read."""

from collections.abc import AsyncIterator

import pytest

from orcastream.bench.serve.http_pool import HttpPool
from tests.bench.scripted_gateway import Answer, scripted_gateway

BODY = {"prompt": [1, 2]}


@pytest.fixture
async def pool() -> AsyncIterator[HttpPool]:
    def says(_: dict[str, str], body: dict[str, object]) -> Answer:
        return Answer([b"one\n", b"two"], hangs="hang" in body) if body.get("prompt") == [1, 2] else Answer([], 422)

    async with scripted_gateway(says) as url, HttpPool(url) as pool:
        yield pool


async def test_sequential_requests_share_one_connection(pool: HttpPool) -> None:
    used = set()
    for _ in range(3):
        async with pool.post("/v1/completions", BODY) as answer:
            used.add(answer)
            assert await answer.status() == 200
            assert [line async for line in answer.lines()] == ["one", "two"]
    async with pool.post("/v1/completions", {}) as refused:
        used.add(refused)
        assert (await refused.status(), await refused.read()) == (422, b"")
    assert len(used) == 1


async def test_concurrent_requests_have_separate_connections(pool: HttpPool) -> None:
    async with pool.post("/v1/completions", BODY) as one, pool.post("/v1/completions", BODY) as other:
        assert one is not other
        assert await one.read() == await other.read() == b"one\ntwo"


async def test_a_connection_left_in_mid_response_is_not_reused(pool: HttpPool) -> None:
    async with pool.post("/v1/completions", BODY | {"hang": True}) as left:
        assert await left.status() == 200
    async with pool.post("/v1/completions", BODY) as other:
        assert other is not left
        assert await other.read() == b"one\ntwo"
