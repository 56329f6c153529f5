"""The record stored for a request next to its entry: written with the entry, owned by the tenant, bounded."""

import time
from dataclasses import replace

import pytest

from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.entry import stream_of
from orcastream.broker.kept_responses import KeptResponses
from orcastream.broker.link import Link
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from tests.broker.scripted import RETENTION_MS, enqueue, make_request
from tests.redis_cluster import RedisCluster

RECORD = '{"text":"Zwölf\\u0000 👍"}'


def with_record(request_id: str, size: int = 100, **changes: object) -> GenerationRequest:
    return replace(make_request(request_id, **changes), record="x" * size)


async def keep(responses: KeptResponses, link: Connection, request: GenerationRequest) -> None:
    await enqueue(link, responses.keys, request)
    await responses.count(link, request, expire_at_ms=request.deadline_ms + RETENTION_MS)


async def kept(responses: KeptResponses, link: Connection, *request_ids: str) -> list[str]:
    return [request_id for request_id in request_ids if await responses.read(link, request_id) is not None]


async def test_a_record_is_written_with_the_entry_and_lives_as_long_as_seen(link: Link, keys: Keys) -> None:
    responses = KeptResponses(keys, 10_000)
    request = replace(make_request("r1"), record=RECORD)
    assert b"record" not in request.fields()
    await enqueue(link, keys, request)
    assert await responses.read(link, "r1") == RECORD.encode()
    lives_ms = await link.call_many([("PTTL", key) for key in (keys.response("r1"), keys.seen("r1"))])
    assert abs(lives_ms[0] - lives_ms[1]) < 100
    await enqueue(link, keys, replace(request, record="another"))
    assert await responses.read(link, "r1") == RECORD.encode(), "of two requests with the same id the first counts"


async def test_a_request_without_a_record_leaves_nothing(link: Link, keys: Keys) -> None:
    await enqueue(link, keys, make_request("r1"))
    assert await link.call("EXISTS", keys.response("r1")) == 0


async def test_enqueueing_a_lost_request_again_writes_its_record_again(link: Link, keys: Keys) -> None:
    request = replace(make_request("r1"), record=RECORD)
    entry = (await enqueue(link, keys, request)).entry
    await link.call("XDEL", stream_of(keys, entry), entry.entry_id)
    await link.call("DEL", keys.response("r1"))
    assert not (await enqueue(link, keys, request, replaces=entry)).duplicate
    assert await KeptResponses(keys, 10_000).read(link, "r1") == RECORD.encode()


async def test_beyond_a_tenants_bound_the_first_to_expire_is_deleted(link: Link, keys: Keys) -> None:
    responses, now_ms = KeptResponses(keys, 350), int(time.time() * 1000)
    for number, in_ms in enumerate((90_000, 60_000, 70_000, 80_000)):
        await keep(responses, link, with_record(f"r{number}", deadline_ms=now_ms + in_ms))
        await keep(responses, link, with_record(f"s{number}", deadline_ms=now_ms + in_ms, tenant="other"))
    assert await kept(responses, link, "r0", "r1", "r2", "r3") == ["r0", "r2", "r3"]
    assert await kept(responses, link, "s0", "s1", "s2", "s3") == ["s0", "s2", "s3"]
    await keep(responses, link, with_record("r4", size=300, deadline_ms=now_ms + 99_000))
    assert await kept(responses, link, "r0", "r2", "r3", "r4") == ["r4"]


async def test_expired_records_do_not_count(link: Link, keys: Keys) -> None:
    responses, request = KeptResponses(keys, 250), with_record("r1")
    await enqueue(link, keys, request)
    await responses.count(link, request, expire_at_ms=int(time.time() * 1000) + 100_000)
    await link.call("ZADD", keys.responses("default"), 1, "r1")
    for name in ("r2", "r3"):
        await keep(responses, link, with_record(name))
    assert await kept(responses, link, "r2", "r3") == ["r2", "r3"]
    assert await link.call("HGET", keys.response_bytes("default"), " total") == b"200"


async def test_counting_twice_counts_once(link: Link, keys: Keys) -> None:
    responses, request = KeptResponses(keys, 10_000), with_record("r1")
    await keep(responses, link, request)
    await keep(responses, link, request)
    assert await link.call("HGET", keys.response_bytes("default"), " total") == b"100"
    names = (keys.responses("default"), keys.response_bytes("default"))
    assert all([await link.call("PTTL", name) > 0 for name in names])


async def test_deleting(link: Link, keys: Keys) -> None:
    responses = KeptResponses(keys, 10_000)
    for name in ("r1", "r2"):
        await keep(responses, link, with_record(name))
    assert await responses.delete(link, "r1", "default")
    assert not await responses.delete(link, "r1", "default")
    assert await kept(responses, link, "r1", "r2") == ["r2"]
    assert await link.call("HGET", keys.response_bytes("default"), " total") == b"100"


async def test_a_foreign_key_counts_as_missing(link: Link, keys: Keys) -> None:
    await link.call("HSET", keys.response("r1"), "a", "b")
    assert await KeptResponses(keys, 10_000).read(link, "r1") is None


@pytest.mark.parametrize("queue_lanes", [1, 3])
async def test_in_a_cluster(cluster: RedisCluster, queue_lanes: int) -> None:
    """No command names keys of two hash slots; each lane has its share of the bound."""
    keys = Keys("demo", queue_lanes=queue_lanes)
    link = await connect(cluster.url, name="test")
    try:
        responses, names = KeptResponses(keys, 1500), [f"r{number}" for number in range(24)]
        for name in names:
            await keep(responses, link, with_record(name))
        found = await kept(responses, link, *names)
        assert 0 < len(found) <= 15
        assert await responses.delete(link, found[0], "default")
        assert await kept(responses, link, *found) == found[1:]
    finally:
        await link.close()
