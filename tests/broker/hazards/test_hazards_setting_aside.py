"""Hazards of setting requests aside, and of entries without an owner."""

import msgpack
import pytest

from orcastream.broker.attach import Ended
from orcastream.broker.dead_letter import bury, is_hopeless
from orcastream.broker.ending import Ender
from orcastream.broker.errors import Unwritable
from orcastream.broker.fold import fold_log
from orcastream.broker.lease import Given
from orcastream.broker.letters import newest_letters
from orcastream.broker.link import Link
from orcastream.broker.presence import Presence, forget_dead, list_workers
from orcastream.broker.queue import RequestQueue, entry_state
from orcastream.broker.scripts import FORGET
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import GROUP, Keys
from tests.broker.conftest import MakeWorker
from tests.broker.scripted import RETENTION_MS, enqueue, make_request, take_over
from tests.redis_server import RedisServer


async def test_hazard_16_innocent_dead_letters_after_many_drains(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Ten workers in a row are drained before the first token: no drain counts as an attempt."""
    await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w0")
    claimed = (await worker.claimer.new(1))[0]
    for index in range(1, 11):
        job = await worker.open(claimed)
        assert await worker.leases.hand_over([job.ref]) == [job.ref]
        assert await worker.claimer.unknown(()) == [], "a handed-over request is not taken back"
        worker = await make_worker(redis_server.url, f"w{index}")
        claimed = (await worker.claimer.expired(1))[0]
        assert claimed.deliveries == 1
    job = await worker.open(claimed)
    assert job.fold.epochs_without_progress == 10
    assert not is_hopeless(claimed.deliveries, job.fold, 3)


@pytest.mark.parametrize(
    ("max_deliveries", "suspected", "set_aside"),
    [
        pytest.param(1, [True, True, True, True], [False, True, True, True], id="alone at once"),
        pytest.param(2, [False, True, True, True], [False, False, True, True], id="alone once"),
        pytest.param(3, [False, True, True, True], [False, False, False, True], id="alone twice"),
    ],
)
async def test_hazard_16_innocent_dead_letters_after_deaths_of_others(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    max_deliveries: int,
    suspected: list[bool],
    set_aside: list[bool],
) -> None:
    """Worker after worker dies. A request runs beside others until the second death, and then alone; it is set aside
    after at least one death alone. New output begins the count again.
    """
    await enqueue(link, keys, make_request())
    options = {"lease_ms": 1, "max_deliveries": max_deliveries}
    job = await (await make_worker(redis_server.url, "w0", **options)).take()
    for first in (1, 11):
        seen = []
        for index in range(first, first + 4):
            worker = await make_worker(redis_server.url, f"w{index}", **options)
            claimed = await take_over(worker)
            job = await worker.open(claimed)
            seen.append((claimed.suspect, is_hopeless(claimed.deliveries, job.fold, max_deliveries)))
            if claimed.suspect:
                worker.leases.count_attempt(job.ref)
        assert seen == list(zip(suspected, set_aside, strict=True))
        await worker.step(job)
        worker.leases.forgive(job.ref)


async def test_hazard_16_waiting_for_a_turn_alone_does_not_count(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Only the suspect that runs may have ended its worker, however many of them wait."""
    await enqueue(link, keys, make_request())
    await (await make_worker(redis_server.url, "w0", lease_ms=1)).take()
    for index in range(1, 8):
        worker = await make_worker(redis_server.url, f"w{index}", lease_ms=1)
        claimed = await take_over(worker)
        assert (claimed.suspect, claimed.deliveries) == (index > 1, 2)


async def test_hazard_16_an_attempt_that_was_handed_over_does_not_count(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A suspect remains one under a new owner, and only attempts that ended with a death count."""
    await enqueue(link, keys, make_request())
    ref = (await (await make_worker(redis_server.url, "w0", lease_ms=1)).claimer.new(1))[0].ref
    await take_over(await make_worker(redis_server.url, "w1", lease_ms=1))
    for index in range(2, 7):
        worker = await make_worker(redis_server.url, f"w{index}", lease_ms=1)
        claimed = await take_over(worker)
        assert (claimed.suspect, claimed.deliveries) == (True, 2)
        worker.leases.count_attempt(ref)
        await worker.leases.hand_over([Given(ref, suspect=True, counted=True)])
    await take_over(worker)
    worker.leases.forgive(ref)
    await worker.leases.hand_over([Given(ref)])
    innocent = (await worker.claimer.expired(1))[0]
    assert (innocent.suspect, innocent.deliveries) == (False, 1)


async def test_hazard_16_a_suspect_whose_claim_was_lost_remains_one(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Redis assigned it to a worker that never got the reply, or that lost its connection while it ran it."""
    await enqueue(link, keys, make_request())
    await (await make_worker(redis_server.url, "w0", lease_ms=1)).take()
    for name in ("w1", "w2"):
        worker = await make_worker(redis_server.url, name, lease_ms=1)
        await take_over(worker)
    await worker.connect()
    (found,) = await worker.claimer.unknown(())
    assert (found.suspect, found.taken_over, found.deliveries) == (True, True, 2)


async def test_hazard_17_dead_letter_lost_or_doubled(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Two workers set the same request aside, the second after the first one's terminal: one dead letter."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await first.take()
    await job.log.end(first.terminal(job, error=ErrorCode.DEAD_LETTER))
    # The first worker dies here, between the terminal event and the burial.
    assert isinstance(await second.attach(await take_over(second)), Ended)
    buried = await bury(link, keys, job.ref, reason=ErrorCode.DEAD_LETTER, message="again")
    assert buried is False
    letters = [one async for one in newest_letters(link, keys)]
    assert [(one.reason, one.attempts, one.request_id) for one in letters] == [("dead_letter", 2, "r1")]
    assert letters[0].entry == str(job.ref)
    assert await RequestQueue(link, keys).depth() == 0


async def test_hazard_17_out_of_memory_buries_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """If the dead letter cannot be written, nothing is acknowledged or deleted either."""
    await enqueue(link, keys, make_request())
    claimed = (await (await make_worker(redis_server.url, "w1")).claimer.new(1))[0]
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unwritable):
            await bury(link, keys, claimed.ref, reason=ErrorCode.DEAD_LETTER, message="")
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    assert (await entry_state(link, keys, claimed.ref, "r1")).consumer == "w1"
    assert await bury(link, keys, claimed.ref, reason=ErrorCode.DEAD_LETTER, message="")


async def test_an_entry_that_breaks_the_contract_ends_and_is_buried(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """With a readable id it also gets a terminal error; without one, only a dead letter."""
    await RequestQueue(link, keys).ensure_groups()
    for fields in (("id", "bad1", "v", "99"), ("id", "no such id!", "v", "1")):
        await link.call("XADD", keys.requests("high"), "*", *fields)
    worker = await make_worker(redis_server.url, "w1")
    ender = Ender(keys, "w1", retention_ms=RETENTION_MS)
    for claimed in await worker.claimer.new(2):
        with pytest.raises(InvalidRequest, match="allowed") as caught:
            worker.parse(claimed)
        await ender.reject(worker.link, claimed.ref, claimed.fields, caught.value)
    assert [one.reason async for one in newest_letters(link, keys)] == ["invalid_request", "unsupported_version"]
    assert await RequestQueue(link, keys).depth() == 0
    assert await link.call("KEYS", "orca:reply:*") == [keys.reply("bad1").encode()]


@pytest.mark.parametrize(("size", "tenant"), [(1, "blue"), (10 << 20, "default")], ids=["small", "beyond the limit"])
async def test_the_tenant_is_not_searched_in_a_payload_beyond_the_limit(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, size: int, tenant: str
) -> None:
    await RequestQueue(link, keys).ensure_groups()
    payload = msgpack.packb({"tenant": "blue", "prompt": [[]] * size})
    await link.call("XADD", keys.requests("high"), "*", "id", "bad", "v", "1", "deadline", "1", "payload", payload)
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    with pytest.raises(InvalidRequest, match="allowed") as caught:
        worker.parse(claimed)
    ender = Ender(keys, "w1", retention_ms=RETENTION_MS)
    assert await ender.reject(worker.link, claimed.ref, claimed.fields, caught.value)
    started = fold_log(await link.call("XRANGE", keys.reply("bad"), "-", "+")).started
    assert started is not None
    assert started.tenant == tenant


@pytest.mark.parametrize("how", ["DELCONSUMER", "group at $", "ack without delete"])
async def test_hazard_18_lost_entries(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, how: str
) -> None:
    """A delivered entry without an owner would wait forever: a sweep makes it claimable."""
    accepted = await enqueue(link, keys, make_request())
    stream = keys.requests("normal")
    owner, other = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2")
    if how == "group at $":
        await link.call("XGROUP", "DESTROY", stream, GROUP)
        await link.call("XGROUP", "CREATE", stream, GROUP, "$")
    else:
        await owner.claimer.new(1)
        if how == "DELCONSUMER":
            await link.call("XGROUP", "DELCONSUMER", stream, GROUP, "w1")
        else:
            await link.call("XACK", stream, GROUP, accepted.entry.entry_id)
    assert await other.claimer.new(1) == []
    sweeper = Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS)
    assert (await sweeper.step()).repaired == 1
    assert (await sweeper.step()).repaired == 0
    claimed = await other.claimer.expired(5)
    assert [(one.ref, one.deliveries) for one in claimed] == [(accepted.entry, 1)]
    assert (await sweeper.step()).repaired == 0


async def test_hazard_18_waiting_and_running_entries_are_left_alone(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A sweep changes nothing that is in order."""
    for index in range(3):
        await enqueue(link, keys, make_request(f"r{index}"))
    worker = await make_worker(redis_server.url, "w1")
    await worker.claimer.new(1)
    assert (await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()).repaired == 0
    assert len(await worker.claimer.new(5)) == 2


async def test_hazard_18_a_consumer_with_entries_is_never_deleted(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Two workers are gone; only the one that holds no entries is deleted."""
    await enqueue(link, keys, make_request())
    for name in ("w1", "w2"):
        worker = await make_worker(redis_server.url, name)
        await Presence(worker.link, keys, name).beat({"state": "ready"}, ttl_ms=50_000)
    await (await make_worker(redis_server.url, "w1")).claimer.new(1)
    assert await forget_dead(link, keys, min_idle_ms=0) == [], "both are alive"
    for name in ("w1", "w2"):
        await Presence(link, keys, name).leave()
    assert await forget_dead(link, keys, min_idle_ms=0) == ["w2"]
    assert [(one.name, one.alive, one.pending) for one in await list_workers(link, keys)] == [("w1", False, 1)]
    assert await link.run(FORGET, [keys.requests("normal")], [GROUP, "w1", 0]) == 0, "atomic with the check"
