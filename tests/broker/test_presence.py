"""Which workers are present."""

from collections.abc import AsyncIterator

import pytest

from orcastream.broker.errors import LinkLost, Unwritable
from orcastream.broker.link import Link
from orcastream.broker.presence import Presence, forget_dead, list_workers
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import enqueue, make_request
from tests.redis_server import RedisServer
from tests.tcp_proxy import TcpProxy


async def test_workers_are_listed_from_their_first_heartbeat(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    assert await list_workers(link, keys) == []
    presence = Presence(link, keys, "w1")
    await presence.beat({"state": "ready", "running": 3}, ttl_ms=50_000)
    await presence.beat({"state": "draining"}, ttl_ms=50_000)
    for name in ("high", "low"):
        await enqueue(link, keys, make_request(name, priority_class=name))
    await (await make_worker(redis_server.url, "w1")).claimer.new(2)
    (worker,) = await list_workers(link, keys)
    assert (worker.name, worker.alive, worker.pending) == ("w1", True, 2)
    assert worker.info == {"state": "draining", "running": "3"}
    await presence.leave()
    (worker,) = await list_workers(link, keys)
    assert not worker.alive


async def test_a_forgotten_worker_reappears_with_its_next_heartbeat(link: Link, keys: Keys) -> None:
    """Its hash expires while the machine is stopped, and a process, possibly the worker itself, cleans up."""
    presence = Presence(link, keys, "w1")
    await presence.beat({"state": "serving"}, ttl_ms=50_000)
    await link.call("DEL", keys.worker("w1"))
    assert await forget_dead(link, keys, min_idle_ms=0) == ["w1"]
    await presence.beat({"state": "serving"}, ttl_ms=50_000)
    assert [(one.name, one.alive) for one in await list_workers(link, keys)] == [("w1", True)]


async def test_a_worker_that_stops_beating_disappears(link: Link, keys: Keys) -> None:
    await Presence(link, keys, "w1").beat({"state": "ready"}, ttl_ms=1)
    while (await list_workers(link, keys))[0].alive:
        pass


class _Beginning(TcpProxy):
    """Lets the first command of what a client sends at once arrive, then cuts the connection."""

    cutting = False

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        if reply or not self.cutting:
            return data, False
        self.cutting = False
        first, more, _ = data.partition(b"\r\n*")
        return first + more[:2], True


async def test_a_report_expires_even_if_the_connection_breaks_after_its_first_command(
    redis_server: RedisServer, link: Link, keys: Keys, open_link: OpenLink
) -> None:
    await Presence(link, keys, "w2").beat({"state": "serving"}, ttl_ms=50_000)  # the server knows all scripts now
    proxy = _Beginning(redis_server.port)
    await proxy.listen()
    try:
        presence = Presence(await open_link(f"redis://127.0.0.1:{proxy.port}/0"), keys, "w1")
        proxy.cutting = True
        with pytest.raises(LinkLost):
            await presence.beat({"state": "serving"}, ttl_ms=50_000)
        while not await link.call("EXISTS", keys.worker("w1")):
            pass
        assert await link.call("PTTL", keys.worker("w1")) > 0
    finally:
        await proxy.refuse()


async def test_where_a_report_cannot_be_read_the_last_one_counts(link: Link, keys: Keys) -> None:
    await Presence(link, keys, "w1").beat({"state": "serving"}, ttl_ms=50_000)
    before = await list_workers(link, keys)
    await link.call("SET", keys.worker("w1"), "no report")
    with pytest.raises(Unwritable, match="WRONGTYPE"):
        await list_workers(link, keys)
    (worker,) = await list_workers(link, keys, before=before)
    assert (worker.info, worker.readable) == ({"state": "serving"}, False)


@pytest.fixture
async def modest(link: Link, redis_server: RedisServer, open_link: OpenLink) -> AsyncIterator[Link]:
    """A user who may create groups, but neither add a worker to one nor list them."""
    rules = ("~*", "+@all", "-xinfo", "-xgroup", "+xgroup|create")
    await link.call("ACL", "SETUSER", "modest", "on", "nopass", *rules)
    yield await open_link(redis_server.url.replace("127.0.0.1", "modest:x@127.0.0.1"))
    await link.call("ACL", "DELUSER", "modest")


async def test_who_may_not_list_workers_is_told_so_and_not_that_there_are_none(modest: Link, keys: Keys) -> None:
    with pytest.raises(Unwritable, match="xinfo"):
        await list_workers(modest, keys)


async def test_a_worker_that_may_not_join_those_that_are_listed_is_told_so(modest: Link, keys: Keys) -> None:
    with pytest.raises(Unwritable, match="xgroup"):
        await Presence(modest, keys, "w1").beat({"state": "ready"}, ttl_ms=50_000)
