"""A durable request is accepted once it is on the server's disk, and refused if the server cannot confirm that."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from orcastream.broker.connection import Connection
from orcastream.broker.durability import Durability
from orcastream.broker.errors import NotOnDisk
from orcastream.broker.queue import Enqueued, RequestQueue
from orcastream.broker.redis_link import RedisLink
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from tests.broker.scripted import RETENTION_MS, make_request
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

Make = Callable[[RedisServer], Durability]


@pytest.fixture
async def make(keys: Keys) -> AsyncIterator[Make]:
    """A factory of waiters for a server's disk."""
    made: list[Durability] = []

    def one(server: RedisServer) -> Durability:
        made.append(Durability(server.url, keys, "durable"))
        return made[-1]

    yield one
    for durability in made:
        await durability.close()


def enqueuing(keys: Keys, request: GenerationRequest) -> Callable[[Connection], Awaitable[Enqueued]]:
    return lambda link: RequestQueue(link, keys).enqueue(request, terms=None, retention_ms=RETENTION_MS)


def sync(server: RedisServer, policy: str = "always") -> None:
    """Make the server write to its disk from now on; a policy takes effect with the next write."""
    with server.client() as client:
        client.config_set("appendfsync", policy)
        client.set("any", "write")


def length(server: RedisServer, keys: Keys) -> int:
    with server.client() as client:
        return int(client.xlen(keys.requests("normal")))


async def test_a_server_that_cannot_confirm_is_refused_before_the_enqueue(
    own_redis: Callable[..., RedisServer], keys: Keys, open_link: Any, make: Make
) -> None:
    """Redis 6.2 and 7.0 do not know the command; a later one without an append-only file writes nothing to disk."""
    server = own_redis()
    link = await open_link(server.url)
    with pytest.raises(
        InvalidRequest, match=r"durable: got True, allowed: false; true with Redis 7.2 or later"
    ) as caught:
        await make(server).enqueue(enqueuing(keys, make_request()), "r1", link)
    assert "WAITAOF" in str(caught.value)
    assert length(server, keys) == 0


async def test_it_waits_until_the_entry_is_on_disk(
    durable_server: RedisServer, keys: Keys, open_link: Any, make: Make
) -> None:
    durability, request = make(durable_server), make_request()
    redis = RedisLink(durable_server.url, "main")
    action = partial(durability.enqueue, enqueuing(keys, request), request.id)
    accepting = asyncio.create_task(redis.patiently(action, time.monotonic() + PATIENCE_S))
    link = await open_link(durable_server.url)
    while not await link.call("EXISTS", keys.seen(request.id)):  # noqa: ASYNC110 (the state is the server's)
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([accepting], timeout=0.5)
    assert not done
    await asyncio.to_thread(sync, durable_server)
    assert str((await accepting).entry) == (await link.call("GET", keys.seen(request.id))).decode()
    await redis.close()


async def test_an_existing_entry_is_waited_for_too(
    durable_server: RedisServer, keys: Keys, open_link: Any, make: Make
) -> None:
    """The connection that wrote the entry is gone: WAITAOF on a new one, which wrote nothing, would return at once."""
    request = make_request()
    lost = await open_link(durable_server.url)
    first = await enqueuing(keys, request)(lost)
    await lost.close()
    with pytest.raises(NotOnDisk):
        await make(durable_server).wait(request.id, first.entry)
    await asyncio.to_thread(sync, durable_server)
    await make(durable_server).wait(request.id, first.entry)


async def test_an_entry_that_the_server_lost_is_not_on_its_disk(
    durable_server: RedisServer, keys: Keys, open_link: Any, make: Make
) -> None:
    await asyncio.to_thread(sync, durable_server)
    link = await open_link(durable_server.url)
    request, other = make_request("r1"), make_request("r2")
    entries = [(await enqueuing(keys, one)(link)).entry for one in (request, other)]
    await link.call("DEL", keys.seen("r1"))
    durability = make(durable_server)
    outcomes = await asyncio.gather(
        *(durability.wait(name, entry) for name, entry in zip(("r1", "r2"), entries, strict=True)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], NotOnDisk)
    assert outcomes[1] is None


async def test_all_waiters_share_one_wait(durable_server: RedisServer, keys: Keys, open_link: Any, make: Make) -> None:
    durability = make(durable_server)
    link = await open_link(durable_server.url)
    requests = [make_request(f"r{number}") for number in range(50)]
    await asyncio.to_thread(sync, durable_server)
    accepted = await asyncio.gather(
        *(durability.enqueue(enqueuing(keys, request), request.id, link) for request in requests)
    )
    assert len({one.entry for one in accepted}) == 50
    with durable_server.client() as client:
        assert client.info("commandstats")["cmdstat_waitaof"]["calls"] < 60
        assert client.xlen(keys.requests("normal")) == 50


async def test_accepted_requests_survive_a_restart(
    durable_server: RedisServer, keys: Keys, open_link: Any, make: Make
) -> None:
    """Requests keep arriving while the server is killed and restarted; the accepted ones are in its file."""
    await asyncio.to_thread(sync, durable_server)
    durability, redis = make(durable_server), RedisLink(durable_server.url, "main")

    async def accept(number: int) -> Enqueued:
        request = make_request(f"r{number}")
        action = partial(durability.enqueue, enqueuing(keys, request), request.id)
        return await redis.patiently(action, time.monotonic() + PATIENCE_S)

    accepting = [asyncio.create_task(accept(number)) for number in range(20)]
    await asyncio.wait(accepting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(durable_server.restart)
    await asyncio.to_thread(sync, durable_server)
    entries = {one.entry for one in await asyncio.gather(*accepting)}
    await redis.close()
    await asyncio.to_thread(durable_server.restart)
    with durable_server.client() as client:
        there = {entry_id.decode() for entry_id, _ in client.xrange(keys.requests("normal"))}
    assert {entry.entry_id for entry in entries} == there
    assert len(there) == 20


async def test_turning_the_append_only_file_off_is_noticed(
    durable_server: RedisServer, keys: Keys, open_link: Any, make: Make
) -> None:
    await asyncio.to_thread(sync, durable_server)
    durability, link = make(durable_server), await open_link(durable_server.url)
    await durability.enqueue(enqueuing(keys, make_request("r1")), "r1", link)
    await link.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(Exception, match="appendonly is disabled"):
        await durability.enqueue(enqueuing(keys, make_request("r2")), "r2", link)
    with pytest.raises(InvalidRequest, match="durable"):
        await durability.enqueue(enqueuing(keys, make_request("r3")), "r3", link)
