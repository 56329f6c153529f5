"""Hazards of a Redis that loses data: gaps, reused epochs, lost requests, resuming across a loss."""

import time
from typing import Any

import pytest

from orcastream.broker.attach import Attached
from orcastream.broker.ending import Ender
from orcastream.broker.errors import Fenced, LinkLost, ReplyConflict, UnknownRequest, Unwritable
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.queue import RequestQueue
from orcastream.broker.terms import Terms
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.broker.conftest import Begin, MakeReader, MakeWorker, OpenLink
from tests.broker.following import Seen, expected, follow, follow_until, resume, tokens_seen
from tests.broker.proxy import LossyProxy
from tests.broker.rewind import Snapshot
from tests.broker.scripted import RETENTION_MS, bare_fields, enqueue, make_request, take_over
from tests.redis_server import RedisServer


async def test_hazard_03_hole_after_a_loss(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Redis loses two tokens and no connection notices: the next write leaves a gap, and a takeover fills it."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    reader = await make_reader(redis_server.url)
    job = await first.take()
    await first.step(job, 3)
    before = Snapshot(redis_server, "orca:reply:*")
    live = reader.subscribe(Watch(request.id, "default"))
    await first.step(job)
    await first.step(job)
    seen = await follow_until(live, Seen(), tokens_seen(5))
    before.restore()
    await first.step(job)
    late = reader.subscribe(Watch(request.id, "default"))
    newcomer = (await make_reader(redis_server.url, "other")).subscribe(Watch(request.id, "default"))
    beyond = await follow_until(newcomer, Seen(), tokens_seen(3))
    assert beyond.tokens[0] == expected(3)
    taken = await second.open(await take_over(second))
    assert taken.tokens[0] == expected(3), "entries after the gap do not count"
    await second.step(taken, 4)
    await second.end(taken)
    for subscription, known in ((live, seen), (late, Seen()), (newcomer, beyond)):
        assert (await follow_until(subscription, known, lambda seen: False)).tokens[0] == expected(7)


async def test_hazard_03_a_terminal_after_a_gap_is_an_error(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    """The terminal counts more tokens than the log holds: an explicit error, never a shorter reply."""
    worker, job = await begin(3)
    request = job.request
    before = Snapshot(redis_server)
    await worker.step(job, 2)
    before.restore()
    await job.log.end(worker.terminal(job))
    with pytest.raises(ReplyConflict, match="tokens are missing"):
        await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))


async def test_hazard_04_epoch_reuse_after_a_loss(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Redis loses an epoch: no later attach, by its writer or another worker, reuses its number."""
    request = make_request()
    await enqueue(link, keys, request)
    first = await make_worker(redis_server.url, "w1")
    claimed = (await first.claimer.new(1))[0]
    before = Snapshot(redis_server)
    ahead_ms = await link.server_time_ms() + 3_600_000
    first.epochs[request.id] = ahead_ms  # as if this worker had attached under a clock that was ahead
    job = await first.open(claimed)
    assert job.log.epoch == ahead_ms + 1
    before.restore()
    again = await first.attach(claimed)
    assert isinstance(again, Attached)
    assert again.log.epoch > job.log.epoch
    with pytest.raises(Fenced):
        await first.step(job)


async def test_hazard_04_epochs_follow_the_clock(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Another worker, which does not know the lost epoch, still gets a higher one."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    claimed = (await first.claimer.new(1))[0]
    before = Snapshot(redis_server)
    forgotten = await first.open(claimed)
    before.restore()
    taken = await second.open(await take_over(second))
    assert taken.log.epoch > forgotten.log.epoch
    with pytest.raises(Fenced):
        await first.step(forgotten)


async def test_hazard_08_lost_accept(
    redis_server: RedisServer, proxy: LossyProxy, link: Link, keys: Keys, open_link: OpenLink
) -> None:
    """The reply to an enqueue is lost: the gateway repeats it, and the request exists once."""
    request = make_request()
    await RequestQueue(link, keys).ensure_groups()
    await enqueue(link, keys, make_request("warm-up"))
    through = await open_link(proxy.url)
    proxy.lose_next_reply()
    with pytest.raises(LinkLost):
        await RequestQueue(through, keys).enqueue(request, terms=Terms(max_requests=10), retention_ms=RETENTION_MS)
    again = await RequestQueue(link, keys).enqueue(request, terms=Terms(max_requests=10), retention_ms=RETENTION_MS)
    assert again.duplicate
    assert await RequestQueue(link, keys).depth() == 2


async def test_hazard_08_an_accepted_request_that_redis_lost(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader, open_link: OpenLink
) -> None:
    """Redis is killed and its append-only file loses an accept: the accepting gateway enqueues it again on its own."""
    server = own_redis(aof="always")
    link = await open_link(server.url)
    await RequestQueue(link, keys).ensure_groups()
    mark = server.aof_size()
    request = make_request()
    accepted = await enqueue(link, keys, request)
    reader = await make_reader(server.url)
    subscription = reader.subscribe(Watch(request.id, "default", accepted.entry, request))
    server.lose_writes_after(mark)
    assert await link.wait_lost()
    await reader.connected.wait()
    worker = await make_worker(server.url, "w1")
    claimed = await worker.wait_for_work(4000)
    assert [one.fields[b"id"] for one in claimed] == [b"r1"]
    job = await worker.open(claimed[0])
    await worker.step(job, 2)
    await worker.end(job)
    assert (await follow(subscription)).tokens[0] == expected(2)


async def test_hazard_09_terminal_lost_ack_kept(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """As when a Cluster's shards lose different suffixes: the queue entry is gone, and its log has no end.

    On one server, the test rewinds only the log.
    """
    request = make_request()
    accepted = await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await worker.step(job, 2)
    before = Snapshot(redis_server, "orca:reply:*")
    await worker.end(job, [worker.next_run(job, 2)])
    before.restore()
    watch = Watch(request.id, "default", accepted.entry, request)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    assert await check.check(link, watch) is Verdict.REQUEUED
    assert await check.check(link, watch) is Verdict.PRESENT
    again = await worker.take()
    assert again.ref == watch.ref != accepted.entry
    assert again.tokens[0] == expected(2), "it continues from what the log still holds"
    await worker.end(again, [worker.next_run(again, 2)])
    assert await check.check(link, watch) is Verdict.ENDED


@pytest.mark.parametrize("code", [ErrorCode.CANCELLED, ErrorCode.DEAD_LETTER])
async def test_hazard_26_one_entry_id_for_two_requests(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, code: ErrorCode
) -> None:
    """A master was cut off, and its successor gave the entry id of one of its requests to another: each is unharmed by
    what is done about the other.
    """
    ours, other = make_request("ours"), make_request("other")
    await enqueue(link, keys, ours)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await link.call("FLUSHDB")
    queue = RequestQueue(link, keys)
    await queue.ensure_groups()
    await link.call("XADD", keys.requests("normal"), job.ref.entry_id, *bare_fields(other))
    watch = Watch(ours.id, "default", job.ref, ours)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    assert await check.check(link, watch) is Verdict.REQUEUED
    assert watch.ref != job.ref
    assert [one.ref for one in await worker.claimer.new(1)] == [job.ref]
    ender = Ender(keys, "gateway", retention_ms=RETENTION_MS)
    assert await ender.end(link, ours.id, ref=job.ref, code=code, message="", request=ours) is not None
    assert await queue.exists(job.ref, other.id)


@pytest.mark.parametrize("unread", [True, False])
async def test_hazard_07_an_answer_that_expired_before_its_gateway_checked(
    redis_server: RedisServer, link: Link, keys: Keys, begin: Begin, unread: bool
) -> None:
    """The accepting gateway checks when only `seen` is left: without a reader nothing is recomputed."""
    worker, job = await begin(2)
    watch = Watch(job.request.id, "default", job.ref, job.request)
    await worker.end(job)
    await link.call("PEXPIRE", keys.reply(job.request.id), 0)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS, unread=unread)
    assert await check.check(link, watch) is (Verdict.UNKNOWN if unread else Verdict.REQUEUED)
    assert await RequestQueue(link, keys).depth() == (0 if unread else 1)


@pytest.mark.parametrize(("late_ms", "told"), [(RETENTION_MS + 1000, Verdict.UNKNOWN), (1000, Verdict.ENDED)])
async def test_hazard_07_a_request_that_may_have_ended_and_expired_is_not_ended_again(
    link: Link, keys: Keys, late_ms: int, told: Verdict
) -> None:
    """The accepting gateway slept, no client reads the reply, and Redis has no trace of the request."""
    request = make_request(deadline_ms=int(time.time() * 1000) - late_ms)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS, unread=True)
    assert await check.check(link, Watch(request.id, "default", request=request)) is told
    assert await link.call("EXISTS", keys.reply(request.id)) == (told is Verdict.ENDED)


async def test_hazard_09_a_gateway_that_did_not_accept_it_ends_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, begin: Begin
) -> None:
    """A gateway without a copy of the request ends it with `lost`, after giving the accepting gateway time to act."""
    worker, job = await begin(2)
    request = job.request
    before = Snapshot(redis_server, "orca:reply:*")
    await worker.end(job)
    before.restore()
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    assert await check.check(link, Watch(request.id, "default")) is Verdict.SUSPECT
    reader = await make_reader(redis_server.url, loss_check_s=0.1)
    seen = await follow(reader.subscribe(Watch(request.id, "default")))
    assert seen.tokens[0] == expected(2)
    assert [terminal.error for terminal in seen.terminals] == [ErrorCode.LOST]
    assert [ending.tokens for ending in seen.terminals[0].endings] == [2]


async def test_checking_an_unknown_id_creates_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader
) -> None:
    """A check of an id that Redis does not know creates no log."""
    reader = await make_reader(redis_server.url, loss_check_s=0.1)
    with pytest.raises(UnknownRequest):
        await follow(reader.subscribe(Watch("nobody", "default")))
    assert await link.call("DBSIZE") == 0


@pytest.mark.parametrize("same_numerics", [True, False])
async def test_hazard_11_resume_across_a_loss(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    same_numerics: bool,
) -> None:
    """A client returns with five tokens to a log that has only two, and another worker writes the rest."""
    request = make_request()
    await enqueue(link, keys, request)
    first = await make_worker(redis_server.url, "w1")
    second = await make_worker(redis_server.url, "w2", lease_ms=1, salt=0 if same_numerics else 3)
    reader = await make_reader(redis_server.url)
    job = await first.take()
    await first.step(job, 2)
    before = Snapshot(redis_server)
    await first.step(job, 3)
    async with reader.subscribe(Watch(request.id, "default")) as subscription:
        seen = await follow_until(subscription, Seen(), tokens_seen(5))
    before.restore()
    taken = await second.open(await take_over(second))
    other = (await make_reader(redis_server.url, "other")).subscribe(Watch(request.id, "default"))
    resumed = resume(other, seen.resume_id)
    await second.step(taken, 5)
    await second.end(taken)
    if same_numerics:
        await follow_until(resumed, seen, lambda seen: False)
        assert seen.tokens[0] == expected(7)
    else:
        with pytest.raises(ReplyConflict, match="is not what the log says"):
            await follow(resumed)


async def test_hazard_11_a_follower_sees_a_conflict_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """The same for a client that never disconnected."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    second.salt = 3
    subscription = (await make_reader(redis_server.url)).subscribe(Watch(request.id, "default"))
    job = await first.take()
    await first.step(job, 2)
    before = Snapshot(redis_server)
    await first.step(job, 3)
    await follow_until(subscription, Seen(), tokens_seen(5))
    before.restore()
    await second.step(await second.open(await take_over(second)), 1)
    with pytest.raises(ReplyConflict, match="token 2: 20 was delivered, the log now says 23"):
        await follow(subscription)


async def test_hazard_21_seen_burned(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A failed accept leaves no trace; a `seen` without an entry does not block the request forever."""
    request = make_request()
    queue = RequestQueue(link, keys)
    await queue.ensure_groups()
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Exception, match="OOM"):
            await queue.enqueue(request, terms=None, retention_ms=RETENTION_MS)
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    assert await queue.find(request.id) is None
    await link.call("SET", keys.seen(request.id), "normal 5-5")
    blocked = await queue.enqueue(request, terms=None, retention_ms=RETENTION_MS)
    assert blocked.duplicate
    watch = Watch(request.id, "default", blocked.entry, request)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    assert await check.check(link, watch) is Verdict.REQUEUED
    worker = await make_worker(redis_server.url, "w1")
    await worker.end(await worker.take())
    assert await check.check(link, watch) is Verdict.ENDED


async def test_hazard_21_two_gateways_replace_an_entry_once(link: Link, keys: Keys) -> None:
    """The replacement names what it replaces, so a second one finds the first."""
    request = make_request()
    queue = RequestQueue(link, keys)
    first = await enqueue(link, keys, request)
    await link.call("XDEL", keys.requests("normal"), first.entry.entry_id)
    options: dict[str, Any] = {"terms": None, "retention_ms": RETENTION_MS, "replaces": first.entry}
    one, two = await queue.enqueue(request, **options), await queue.enqueue(request, **options)
    assert (await queue.enqueue(request, **{**options, "replaces": one.entry})).duplicate, "it is not gone"
    assert (one.duplicate, two.duplicate) == (False, True)
    assert one.entry == two.entry != first.entry
    await link.call("DEL", keys.seen(request.id))
    three = await queue.enqueue(request, terms=None, retention_ms=RETENTION_MS, replaces=one.entry)
    assert three.duplicate
    assert await queue.depth() == 1


async def test_a_lost_request_past_its_deadline_expires(link: Link, keys: Keys) -> None:
    """No gateway enqueues an overdue request again."""
    request = make_request(deadline_ms=int(time.time() * 1000) - 1)
    accepted = await enqueue(link, keys, request)
    await link.call("XDEL", keys.requests("normal"), accepted.entry.entry_id)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    assert await check.check(link, Watch(request.id, "default", accepted.entry, request)) is Verdict.ENDED
    assert await RequestQueue(link, keys).depth() == 0


async def test_an_unwritable_server_is_not_a_loss(redis_server: RedisServer, link: Link, keys: Keys) -> None:
    """A check that cannot write reports it and changes nothing."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    await link.call("XDEL", keys.requests("normal"), accepted.entry.entry_id)
    watch = Watch(request.id, "default", accepted.entry, request)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unwritable):
            await check.check(link, watch)
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    assert await check.check(link, watch) is Verdict.REQUEUED
