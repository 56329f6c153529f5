"""Accepting requests: bounds, duplicates, groups."""

import asyncio

import pytest

from orcastream.broker.entry import Mark
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue, ensure_groups
from orcastream.schemas.codec import Form
from orcastream.schemas.keys import GROUP, Keys
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS
from orcastream.schemas.request import GenerationRequest
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import RETENTION_MS, bare_fields, enqueue, make_request
from tests.redis_server import RedisServer


@pytest.mark.parametrize("form", list(Form))
async def test_a_request_arrives_as_it_was_sent(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, form: Form
) -> None:
    request = make_request(form=form, stop=("\n",), n=2, seed=5, tenant="acme", priority_class="high")
    await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    assert worker.parse(claimed) == request
    assert (claimed.deliveries, claimed.ref.priority_class) == (1, "high")


async def test_rivals_enqueue_once(redis_server: RedisServer, keys: Keys, open_link: OpenLink) -> None:
    links = [await open_link(redis_server.url) for _ in range(4)]
    request = make_request()
    results = await asyncio.gather(*(enqueue(link, keys, request) for link in links))
    assert len({result.entry for result in results}) == 1
    assert [result.duplicate for result in results].count(False) == 1


async def test_the_seen_key_outlives_the_deadline(link: Link, keys: Keys) -> None:
    request = make_request()
    await enqueue(link, keys, request)
    ttl_ms = await link.call("PTTL", keys.seen(request.id))
    assert 110_000 < ttl_ms <= 60_000 + RETENTION_MS


async def test_a_bare_add_is_served_and_then_remembered(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    await ensure_groups(link, keys)
    request = make_request()
    entry_id = await link.call("XADD", keys.requests("low"), "*", *bare_fields(_of_class(request, "low")))
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    await worker.link.call("PING")  # the mark is written together with this command
    found = await RequestQueue(link, keys).find(request.id)
    assert found == Mark(claimed.ref)
    assert str(found) == f"low {entry_id.decode()}"
    assert (await enqueue(link, keys, request)).duplicate


async def test_a_bare_add_with_a_far_deadline_is_not_remembered_for_years(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    await ensure_groups(link, keys)
    request = make_request(deadline_ms=999_999_999_999_999)
    await link.call("XADD", keys.requests("normal"), "*", *bare_fields(request))
    worker = await make_worker(redis_server.url, "w1")
    assert len(await worker.claimer.new(1)) == 1
    _, left_ms = await worker.link.call_many([("PING",), ("PTTL", keys.seen(request.id))])
    assert 0 < left_ms <= MAX_DEADLINE_AHEAD_MS + RETENTION_MS + 60_000


async def test_a_group_starts_at_the_beginning_of_the_stream(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Requests posted before any worker started are served; a deleted group is recreated."""
    await link.call("XADD", keys.requests("normal"), "*", *bare_fields(make_request()))
    worker = await make_worker(redis_server.url, "w1")
    assert await worker.claimer.expired(1) == []
    assert [one.fields[b"id"] for one in await worker.claimer.new(1)] == [b"r1"]
    await link.call("XGROUP", "DESTROY", keys.requests("normal"), GROUP)
    assert await worker.claimer.unknown(()) == []
    again = await worker.claimer.new(1)
    assert [one.fields[b"id"] for one in again] == [b"r1"], "a new group begins at 0 too"


async def test_a_group_deleted_under_a_waiting_worker(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The worker notices, recreates the group, and gets the next request."""
    await ensure_groups(link, keys)
    worker = await make_worker(redis_server.url, "w1")
    waiting = asyncio.create_task(worker.wait_for_work(4000))
    while b"blocked_clients:0" in await link.call("INFO", "clients"):
        pass
    await link.call("XGROUP", "DESTROY", keys.requests("low"), GROUP)
    await link.call("XADD", keys.requests("low"), "*", *bare_fields(_of_class(make_request("r2"), "low")))
    found = await waiting or await worker.claimer.new(1) or await worker.claimer.new(1)
    assert [one.fields[b"id"] for one in found] == [b"r2"]


def _of_class(request: GenerationRequest, name: str) -> GenerationRequest:
    return GenerationRequest(request.id, request.payload, request.deadline_ms, name)
