"""Batches whose records another version wrote, or that are damaged: clients are told, and nothing else suffers."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from redis import Redis

from orcastream.gateway.batches.unreadable_batches import UnreadableBatches
from orcastream.schemas.keys import Keys
from tests.gateway.batches.conftest import begin, ended, line
from tests.gateway.conftest import MODEL, Stage, eventually
from tests.redis_server import RedisServer

Record = Mapping[bytes, bytes]


def damaged(record: Record) -> list[dict[Any, Any]]:
    """Values in place of a batch's record, each wrong in one way."""
    order = json.loads(record[b"order"])
    details = order["details"]
    orders = [
        order | {"unknown": 1},
        {name: value for name, value in order.items() if name != "deadline_ms"},
        order | {"created_ms": "soon"},
        order | {"tenant": None},
        order | {"details": []},
        order | {"details": details | {"unknown": 1}},
        order | {"details": details | {"kept_s": "long"}},
        order | {"details": details | {"grant": None}},
        order | {"details": details | {"asked": details["asked"] | {"endpoint": "/v1/embeddings"}}},
    ]
    texts = [b"", b"{", b"[]", b"\xff", b"[" * 100_000, *(json.dumps(each).encode() for each in orders)]
    marks = [{b"in_progress_ms": b"soon"}, {b"cancelling_ms": b"1e3"}, {b"errors": b"{"}, {b"errors": b"{}"}]
    counts = [{b"completed": b"many"}, {b"total": b""}, {b"note": b"\xff"}]
    without_order = {name: value for name, value in record.items() if name != b"order"}
    changes: list[dict[bytes, bytes]] = [*({b"order": text} for text in texts), *marks, *counts]
    return [*({**record, **each} for each in changes), without_order]


def put(redis: Redis, key: str, record: Mapping[Any, Any]) -> None:
    redis.delete(key)
    redis.hset(key, mapping=dict(record))


async def test_clients_are_told_and_lists_still_work(stage: Stage, redis_server: RedisServer) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"one": "red", "two": "blue"})
    mine, other = served.openai("one"), served.openai("two")
    first, wrong, last = [await ended(mine, await begin(mine, line("a"))) for _ in range(3)]
    key = Keys(MODEL).job(wrong.id)

    async def check() -> None:
        for client, kind, code in (
            (mine, openai.ConflictError, "batch_unreadable"),
            (other, openai.NotFoundError, "batch_not_found"),
        ):
            for ask in (client.batches.retrieve, client.batches.cancel):
                with pytest.raises(kind) as refused:
                    await ask(wrong.id)
                assert (refused.value.code, refused.value.param) == (code, "id")
        for limit in (1, 2, 20):
            assert [one.id async for one in mine.batches.list(limit=limit)] == [last.id, first.id]
        page = await mine.batches.list(limit=2)
        assert not page.has_more

    with redis_server.client() as redis:
        record = redis.hgetall(key)
        for each in damaged(record):
            put(redis, key, each)
            await check()
        redis.delete(key)
        redis.set(key, "no hash")
        await check()
        put(redis, key, record)
    assert await mine.batches.retrieve(wrong.id) == wrong
    assert [one.id async for one in mine.batches.list(limit=1)] == [last.id, wrong.id, first.id]


async def test_an_unreadable_batch_tells_clients_not_to_retry(stage: Stage, redis_server: RedisServer) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    batch = await ended(client, await begin(client, line("a")))
    with redis_server.client() as redis:
        redis.hset(Keys(MODEL).job(batch.id), "order", "{")
    with pytest.raises(openai.ConflictError, match="another version made it, or it is damaged") as refused:
        await client.batches.retrieve(batch.id)
    assert refused.value.response.headers["x-should-retry"] == "false"


async def test_other_batches_run_despite_unreadable_ones(
    stage: Stage, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    made, keys = await ended(client, await begin(client, line("a"))), Keys(MODEL)
    with redis_server.client() as redis, caplog.at_level(logging.WARNING, "orcastream.gateway"):
        wrong = {f"batch_{number}": each for number, each in enumerate(damaged(redis.hgetall(keys.job(made.id))))}
        for batch_id, record in wrong.items():
            put(redis, keys.job(batch_id), record)
        redis.set(keys.job("batch_none"), "no hash")
        ids = {*wrong, "batch_none"}
        redis.hset(keys.open_batches, mapping=dict.fromkeys(ids, "other"))
        for _ in range(2):
            assert (await ended(client, await begin(client, line("a")))).status == "completed"

        async def all_are_told() -> bool:
            return set(told(caplog)) == ids

        await eventually(all_are_told)
        assert len(told(caplog)) == len(ids)
        assert {name.decode() for name in redis.hkeys(keys.open_batches)} >= ids


async def test_a_batch_that_was_gone_is_reported_again(
    stage: Stage, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client, keys = (await stage.gateway(max_batch_lines=1)).openai(), Keys(MODEL)

    async def is_told(times: int) -> bool:
        return len(told(caplog)) == times

    with redis_server.client() as redis, caplog.at_level(logging.WARNING, "orcastream.gateway"):
        redis.hset(keys.job("batch_wrong"), "order", "{")
        for times in (1, 2):
            redis.hset(keys.open_batches, "batch_wrong", "default")
            await eventually(lambda times=times: is_told(times))  # type: ignore[misc]
            redis.hdel(keys.open_batches, "batch_wrong")
            await ended(
                client, await begin(client, line("a"), line("b"))
            )  # so the gateway has looked at the open batches since


def test_each_unreadable_batch_is_logged_once_while_open(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = UnreadableBatches()
    with caplog.at_level(logging.WARNING, "orcastream.gateway"):
        for open_ids in ({"a", "b"}, {"a"}, {"a", "b"}):
            unreadable.keep(open_ids)
            for batch_id in sorted(open_ids):
                unreadable.tell(batch_id, ValueError("why"))
    assert told(caplog) == ["a", "b", "b"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the batches that the log reports as unreadable."""
    return [vars(record)["batch"] for record in caplog.records if record.getMessage() == "batch not readable"]
