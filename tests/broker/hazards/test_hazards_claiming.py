"""Hazards of the queue and of leases: lost claims, storms, thefts, unowned entries, dead letters."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from orcastream.broker import takeover_gate
from orcastream.broker.connection import time_ms
from orcastream.broker.errors import LinkLost, Unwritable
from orcastream.broker.link import Link
from orcastream.broker.presence import new_process_name
from orcastream.broker.queue import RequestQueue, entry_state
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.keys import CLASSES, GROUP, Keys
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.proxy import LossyProxy
from tests.broker.scripted import RETENTION_MS, enqueue, make_request, take_over
from tests.redis_server import RedisServer


async def test_hazard_06_consumer_name_reuse(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A restarted worker has a new name: it takes its predecessor's requests over, never as its own."""
    names = {new_process_name() for _ in range(100)}
    assert len(names) == 100
    before, after = names.pop(), names.pop()
    await enqueue(link, keys, make_request())
    dead = await make_worker(redis_server.url, before)
    await dead.take()
    await dead.close()
    restarted = await make_worker(redis_server.url, after, lease_ms=1)
    assert await restarted.claimer.unknown(()) == []
    assert (await take_over(restarted)).deliveries == 2


async def test_hazard_13_lost_claim(
    redis_server: RedisServer, proxy: LossyProxy, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Redis assigned a request to a worker that never got the reply."""
    await enqueue(link, keys, make_request("r1"))
    worker = await make_worker(proxy.url, "w1")
    running = await worker.take()
    await enqueue(link, keys, make_request("r2", priority_class="realtime"))
    proxy.lose_next_reply()
    with pytest.raises(LinkLost):
        await worker.claimer.new(1)
    await worker.connect(not_before=float("inf"))
    found = await worker.claimer.unknown({running.ref})
    assert [(one.fields[b"id"], one.deliveries, one.suspect) for one in found] == [(b"r2", 1, False)]
    assert found[0].taken_over, "nobody knows whether it was begun"
    job = await worker.open(found[0])
    assert await worker.claimer.unknown({running.ref, job.ref}) == []


async def test_hazard_13_a_claim_in_flight_is_not_lost(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """While a claim is in flight, or its reply has only now arrived, no sweep treats its entry as lost."""
    worker = await make_worker(redis_server.url, "w1")
    await RequestQueue(link, keys).ensure_groups()
    waiting = asyncio.create_task(worker.wait_for_work(3000))
    await _until_blocked(link)
    await enqueue(link, keys, make_request())
    assert await worker.claimer.unknown(()) == []
    assert len(await waiting) == 1
    assert await worker.claimer.unknown(()) == []


async def test_hazard_13_a_cancelled_wait_loses_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The waiting call is abandoned while Redis still blocks on it."""
    worker = await make_worker(redis_server.url, "w1")
    await RequestQueue(link, keys).ensure_groups()
    waiting = asyncio.create_task(worker.wait_for_work(3000))
    await _until_blocked(link)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await enqueue(link, keys, make_request())
    assert len(await worker.claimer.unknown(())) == 1


async def test_hazard_13_a_body_deleted_while_pending_is_dropped(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Redis 6.2 keeps deleted entries pending: they are acknowledged wherever they are found."""
    refs = [(await enqueue(link, keys, make_request(f"r{i}"))).entry for i in range(2)]
    worker, other = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    await worker.claimer.new(2)
    await link.call("XDEL", keys.requests("normal"), refs[0].entry_id)
    await worker.connect()
    assert [one.ref for one in await worker.claimer.unknown(())] == [refs[1]]
    assert await _pending(link, keys) == 1
    await link.call("XDEL", keys.requests("normal"), refs[1].entry_id)
    while (await link.call("XPENDING", keys.requests("normal"), GROUP))[0]:
        assert await other.claimer.expired(5) == []


@pytest.mark.parametrize("stalls", [False, True], ids=["", "redis stalls now and then"])
async def test_hazard_14_scan_starvation(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, stalls: bool
) -> None:
    """Many expired leases that this worker may not take precede the one that it may."""
    for index in range(40):
        await enqueue(link, keys, make_request(f"r{index}"))
    worker, other = await make_worker(redis_server.url, "w1", lease_ms=1), await make_worker(redis_server.url, "w2")
    await worker.claimer.new(39)
    theirs = (await other.claimer.new(1))[0]
    await asyncio.sleep(0.002)
    for _ in range(40):
        if stalls:
            assert isinstance(worker.link, Link)
            worker.link.longest_wait_s = 1.0
            assert await worker.claimer.expired(1) == []
            await asyncio.sleep(0.002)
        found = await worker.claimer.expired(1)
        if found:
            break
    assert [one.ref for one in found] == [theirs.ref]


async def test_hazard_14_sweeps_reach_the_end_of_a_long_queue(link: Link, keys: Keys) -> None:
    """Each step looks at a few entries and continues where the previous one stopped, then starts over."""
    for index in range(20):
        await enqueue(link, keys, make_request(f"r{index}"))
    late = await enqueue(link, keys, make_request("late", deadline_ms=1))
    sweeper = Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, chunk=4)
    steps = [await sweeper.step() for _ in range(6)]
    assert [step.expired for step in steps] == [(), (), (), (), (), (late.entry,)]
    another = await enqueue(link, keys, make_request("another", deadline_ms=1))
    assert another.entry in [ref for _ in range(7) for ref in (await sweeper.step()).expired]


async def test_hazard_15_takeover_storm_after_a_redis_restart(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, open_link: OpenLink
) -> None:
    """Idle time includes Redis's downtime: no request is taken over before its owner had one lease time to renew."""
    server = own_redis(aof="always")
    link = await open_link(server.url)
    accepted = await enqueue(link, keys, make_request())
    lease_ms = 3000
    owner = await make_worker(server.url, "w1", lease_ms=lease_ms)
    rival = await make_worker(server.url, "w2", lease_ms=lease_ms)
    job = await owner.take()
    server.kill()
    await asyncio.sleep(1.1 * lease_ms / 1000)
    server.start()
    await rival.connect()
    await owner.connect()
    assert await rival.claimer.expired(1) == []
    assert (await entry_state(rival.link, keys, accepted.entry, "r1")).idle_ms >= lease_ms, "the lease has expired"
    assert (await owner.renew(job))[job.ref].owned
    await owner.close()
    assert (await take_over(rival)).deliveries == 2, "a worker that is really gone is taken over, later"


@pytest.mark.parametrize("in_script", [False, True], ids=["", "in a script"])
async def test_hazard_15_takeover_storm_after_a_time_without_writes(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, in_script: bool
) -> None:
    """Owners get a lease time to renew after a time without renewals on the server, here for lack of replicas."""
    accepted = await enqueue(link, keys, make_request())
    owner, rival = [await make_worker(redis_server.url, name, lease_ms=500) for name in ("w1", "w2")]
    job = await owner.take()
    write = ("EVAL", "return redis.call('DEL', KEYS[1])", 1, keys.watched) if in_script else ("DEL", keys.watched)
    await link.call("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        while (await entry_state(link, keys, accepted.entry, "r1")).idle_ms < 500:
            with pytest.raises(Unwritable, match="NOREPLICAS"):
                await owner.renew(job)
        with pytest.raises(ResponseError, match="NOREPLICAS"):  # like a worker's heartbeat
            await rival.link.call(*write)
    finally:
        await link.call("CONFIG", "SET", "min-replicas-to-write", 0)
    assert await rival.claimer.expired(1) == []
    assert (await owner.renew(job))[job.ref].owned
    await owner.close()
    assert (await take_over(rival)).deliveries == 2, "a worker that is really gone is taken over, later"


async def test_hazard_15_takeover_storm_after_the_servers_clock_was_set_forward(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle times grow by the step: owners get a lease time to renew."""
    accepted = await enqueue(link, keys, make_request())
    lease_ms, step_ms = 1000, 120_000
    owner = await make_worker(redis_server.url, "w1", lease_ms=lease_ms)
    rival = await make_worker(redis_server.url, "w2", lease_ms=lease_ms)
    job = await owner.take()
    gate = await rival.claimer._gate(keys)
    while not await gate.is_open():  # the server has only just started
        await owner.renew(job)
    set_idle = ("XCLAIM", keys.requests("normal"), GROUP, "w1", 0, accepted.entry.entry_id, "IDLE", step_ms, "JUSTID")
    await link.call(*set_idle)
    monkeypatch.setattr(takeover_gate, "time_ms", lambda reply: time_ms(reply) + step_ms)
    assert await rival.claimer.expired(1) == []
    assert (await owner.renew(job))[job.ref].owned
    await owner.close()
    assert (await take_over(rival)).deliveries == 2, "a worker that is really gone is taken over, later"


async def test_hazard_15_no_takeover_within_a_lease_of_ones_own_reconnect(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A worker that was disconnected renews first, and lets others do the same."""
    await enqueue(link, keys, make_request())
    await (await make_worker(redis_server.url, "w1")).take()
    rival = await make_worker(redis_server.url, "w2", lease_ms=1)
    await rival.connect(not_before=float("inf"))
    assert await rival.claimer.expired(1) == []
    loop = asyncio.get_running_loop()
    not_before = loop.time() + 0.05
    await rival.connect(not_before=not_before)
    assert (await take_over(rival)).deliveries == 2
    assert loop.time() >= not_before


async def test_hazard_22_hand_over_that_steals(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A worker that lost its lease unknowingly drains and renews: the new owner keeps the request."""
    await enqueue(link, keys, make_request())
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await first.take()
    taken = await second.open(await take_over(second))
    assert await first.leases.hand_over([job.ref]) == []
    assert not (await first.renew(job))[job.ref].owned
    state = await entry_state(link, keys, taken.ref, "r1")
    assert (state.consumer, state.deliveries) == ("w2", 2)
    assert state.idle_ms < 60_000
    await second.step(taken)


async def test_hazard_23_over_claim(redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker) -> None:
    """COUNT is per stream: a worker with room for three takes three, the most urgent ones."""
    for name in CLASSES:
        for index in range(2):
            await enqueue(link, keys, make_request(f"{name}{index}", priority_class=name))
    worker, other = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2")
    claimed = await worker.claimer.new(3)
    assert [one.ref.priority_class for one in claimed] == ["realtime", "realtime", "high"]
    assert await _pending(link, keys) == 3
    waited = await other.wait_for_work(1000, count=1)
    assert [one.ref.priority_class for one in waited] == ["high"]
    third = await make_worker(redis_server.url, "w3")
    surplus = await third.claimer.expired(10)
    assert sorted(one.ref.priority_class for one in surplus) == ["low", "normal"]
    assert {one.deliveries for one in surplus} == {1}
    assert await other.claimer.unknown({waited[0].ref}) == []


async def test_hazard_23_the_only_worker_can_reclaim_its_surplus(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A worker may get the requests that it gave away back once it has room."""
    await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    await worker.leases.hand_over([claimed.ref])
    assert [(one.ref, one.deliveries) for one in await worker.claimer.expired(1)] == [(claimed.ref, 1)]


async def test_hazard_23_expired_leases_are_bounded_too(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A takeover claims only as many requests as the worker has room for."""
    for index in range(6):
        await enqueue(link, keys, make_request(f"r{index}", priority_class=CLASSES[index % 2]))
    dead = await make_worker(redis_server.url, "w1")
    await dead.claimer.new(6)
    heir = await make_worker(redis_server.url, "w2", lease_ms=5)
    await asyncio.sleep(0.01)
    await heir.leases.renew([])
    while not (taken := await heir.claimer.expired(4)):
        pass
    assert len(taken) == 4


async def _pending(link: Link, keys: Keys) -> int:
    summaries = await link.call_many([("XPENDING", keys.requests(name), GROUP) for name in CLASSES])
    return sum(summary[0] for summary in summaries)


async def _until_blocked(link: Link) -> None:
    while b"blocked_clients:0" in await link.call("INFO", "clients"):
        pass
