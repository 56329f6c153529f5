"""Hazards of ending and canceling: requests without an owner, racing cancels, clients that come and go."""

import asyncio
import time

import pytest

from orcastream.broker.attach import Ended, NotMine
from orcastream.broker.cancel import Control, ControlReader, cancel, cancelled, drain
from orcastream.broker.ending import Ender
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import Fenced
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.queue import RequestQueue
from orcastream.broker.resp import fields_of
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import GROUP, Keys
from orcastream.schemas.request import GenerationRequest
from tests.broker.conftest import MakeReader, MakeWorker, OpenLink
from tests.broker.following import Seen, expected, follow, follow_until, resume, tokens_seen
from tests.broker.scripted import RETENTION_MS, bare_fields, enqueue, make_request
from tests.redis_server import RedisServer


@pytest.mark.parametrize("form", list(Form))
async def test_hazard_10_nobody_to_end_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, form: Form
) -> None:
    """No worker ever runs: the deadline still ends the request, and its client is told."""
    request = make_request(deadline_ms=int(time.time() * 1000), form=form, tenant="acme")
    await enqueue(link, keys, request)
    subscription = (await make_reader(redis_server.url)).subscribe(Watch(request.id, "acme"))
    sweeper = Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=0)
    while not (await sweeper.step()).expired:
        pass
    seen = await follow(subscription)
    assert [terminal.error for terminal in seen.terminals] == [ErrorCode.EXPIRED]
    assert seen.workers == ["gateway"]
    assert await RequestQueue(link, keys).depth() == 0
    entries = await link.call("XRANGE", keys.reply(request.id), "-", "+")
    assert all((entry[1][3][:1] == b"{") is (form is Form.JSON) for entry in entries)


async def test_hazard_10_a_dead_worker_held_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """The terminal event counts the tokens that the dead worker wrote."""
    request = make_request(deadline_ms=int(time.time() * 1000))
    await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await worker.step(job, 3)
    await worker.close()
    sweepers = [Sweeper(link, keys, f"g{i}", retention_ms=RETENTION_MS, margin_ms=0) for i in range(3)]
    swept = await asyncio.gather(*(sweeper.step() for sweeper in sweepers))
    assert any(step.expired for step in swept)
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert seen.tokens[0] == expected(3)
    assert [terminal.usage.completion_tokens for terminal in seen.terminals] == [3]
    assert len(await _terminals(link, keys, request.id)) == 1


@pytest.mark.parametrize("is_overdue", [True, False], ids=["overdue", "invalid"])
async def test_hazard_05_a_faulty_later_entry_does_not_end_the_earlier_one(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, is_overdue: bool
) -> None:
    """A request was accepted and waits; another producer adds an entry under its id."""
    ref = (await enqueue(link, keys, make_request(priority_class="low"))).entry
    await _add_just_after(ref, link, keys, make_request(deadline_ms=int(time.time() * 1000) - 60_000))
    if is_overdue:
        assert (await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()).expired == ()
    else:
        worker = await make_worker(redis_server.url, "w1")
        (entry,) = await link.call("XRANGE", keys.requests("normal"), "-", "+")
        fields, ender = fields_of(entry[1]), Ender(keys, "w1", retention_ms=RETENTION_MS)
        later_ref = EntryRef("normal", entry[0].decode())
        await ender.reject(worker.link, later_ref, fields, InvalidRequest("payload", "x", "another"))
    assert await link.call("XLEN", keys.requests("normal")) == 0
    assert await link.call("EXISTS", keys.reply("r1")) == 0
    mark = await RequestQueue(link, keys).find("r1")
    assert mark is not None
    assert mark.ref == ref
    assert await RequestQueue(link, keys).exists(ref, "r1")


async def test_hazard_05_the_entry_that_began_the_log_ends_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A later entry that was begun first passes its deadline: no other entry continues its output."""
    ref = (await enqueue(link, keys, make_request(priority_class="low"))).entry
    await _add_just_after(ref, link, keys, make_request(deadline_ms=int(time.time() * 1000) - 5000))
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    assert job.claimed.ref.priority_class == "normal"
    await worker.step(job)
    swept = await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()
    assert swept.expired == (job.claimed.ref,)
    assert await _terminals(link, keys, "r1") == [b"error"]
    other = await worker.attach((await worker.claimer.new(1))[0])
    assert isinstance(other, Ended)
    assert not await RequestQueue(link, keys).exists(ref, "r1")


async def test_hazard_10_the_owner_learns_that_its_request_was_ended(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A live worker that slept past the deadline is fenced, and finds the end."""
    request = make_request(deadline_ms=int(time.time() * 1000) - 5000)
    await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    assert (await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()).expired == (job.ref,)
    with pytest.raises(Fenced):
        await worker.step(job)
    attachment = await worker.attach(job.claimed)
    assert isinstance(attachment, Ended)
    assert not (await worker.renew(job))[job.ref].owned


async def test_hazard_10_many_deadlines_pass_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """One step ends all of them, also behind requests that workers run and in front of others that wait."""
    now_ms = await link.server_time_ms()
    for number in range(100):
        await enqueue(link, keys, make_request(f"runs{number}"))
    await (await make_worker(redis_server.url, "w1")).claimer.new(100)
    for number in range(100):
        await enqueue(link, keys, make_request(f"overdue{number}", deadline_ms=now_ms - 5000))
    for number in range(100):
        await enqueue(link, keys, make_request(f"waits{number}"))
    swept = await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()
    assert len(swept.expired) == 100
    assert await RequestQueue(link, keys).depth() == 200


async def test_hazard_10_a_dead_workers_deadlines_pass_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """They are no waiting ones; one step ends all of those that follow the first."""
    now_ms = await link.server_time_ms()
    for number in range(100):
        await enqueue(link, keys, make_request(f"r{number}", deadline_ms=now_ms - 5000))
    await (await make_worker(redis_server.url, "w1")).claimer.new(100)
    assert len((await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()).expired) == 100


async def test_hazard_10_sweepers_share_what_is_overdue(
    redis_server: RedisServer, link: Link, keys: Keys, open_link: OpenLink
) -> None:
    """All of them find the same requests; each request ends once, and hardly any is attempted twice."""
    now_ms = await link.server_time_ms()
    for number in range(200):
        await enqueue(link, keys, make_request(f"r{number}", deadline_ms=now_ms - 5000))
    links = [await open_link(redis_server.url) for _ in range(3)]
    sweepers = [Sweeper(one, keys, f"g{at}", retention_ms=RETENTION_MS) for at, one in enumerate(links)]
    ended = [len(swept.expired) for swept in await asyncio.gather(*(sweeper.step() for sweeper in sweepers))]
    assert 200 <= sum(ended) < 400
    for number in range(200):
        assert await _terminals(link, keys, f"r{number}") == [b"error"]


async def test_owners_get_a_margin_after_the_deadline(link: Link, keys: Keys) -> None:
    """A sweep does not race the owner at the exact deadline."""
    await enqueue(link, keys, make_request(deadline_ms=await link.server_time_ms() - 1000))
    assert (await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=30_000).step()).expired == ()
    assert len((await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=0).step()).expired) == 1


async def test_hazard_19_cancel_missed_in_a_race(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, open_link: OpenLink
) -> None:
    """The wake-up precedes the request at the worker: the key, read after registering, still shows the cancel."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    control = ControlReader(await open_link(redis_server.url), keys)
    await control.begin(link)
    claimed = (await worker.claimer.new(1))[0]
    await cancel(link, keys, request.id, expire_at_ms=request.deadline_ms)
    assert await control.read(1000) == [Control("cancel", request.id)], "and the worker runs no request of that id yet"
    assert not await Ender(keys, "gateway", retention_ms=1).end_if_waiting(link, request, accepted.entry, "cancelled")
    job = await worker.open(claimed)
    assert await cancelled(worker.link, keys, [request.id, "other"]) == {request.id}
    assert (await worker.renew(job))[job.ref].cancelled, "every renewal reads the key again"
    await worker.end(job, error=ErrorCode.CANCELLED)


async def test_hazard_19_wake_ups_are_not_lost_between_reads(
    redis_server: RedisServer, link: Link, keys: Keys, open_link: OpenLink
) -> None:
    """The reader continues from its position, including messages written while it did not read."""
    control = ControlReader(await open_link(redis_server.url), keys)
    await cancel(link, keys, "before")
    await control.begin(link)
    await cancel(link, keys, "r1")
    await drain(link, keys, "w1")
    assert await control.read(1000) == [Control("cancel", "r1"), Control("drain", "w1")]
    await cancel(link, keys, "r2")
    assert await control.read(1000) == [Control("cancel", "r2")]
    assert await control.read(1) == []


async def test_hazard_19_a_waiting_request_ends_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """No worker runs it: the canceller ends it, and no worker gets it afterwards."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    await cancel(link, keys, request.id)
    told: list[tuple[EntryRef | None, str, int]] = []
    ender = Ender(
        keys, "gateway", retention_ms=RETENTION_MS, on_end=lambda ref, end, ms: told.append((ref, end.outcome, ms))
    )
    assert await ender.end_if_waiting(link, request, accepted.entry, "the client cancelled it")
    assert not await ender.end_if_waiting(link, request, accepted.entry, "the client cancelled it")
    code = ErrorCode.EXPIRED
    assert await ender.end(link, request.id, ref=accepted.entry, code=code, message="", request=request) is not None
    [(ref, outcome, at_ms)] = told  # of the one that it wrote, not of the one that it found
    assert (ref, outcome) == (accepted.entry, "cancelled")
    assert accepted.entry.order[0] <= at_ms <= await link.server_time_ms()
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert [terminal.error for terminal in seen.terminals] == [ErrorCode.CANCELLED]
    assert await (await make_worker(redis_server.url, "w1")).claimer.new(1) == []


@pytest.mark.parametrize("how", ["handed over", "repaired"])
async def test_hazard_19_a_returned_request_ends_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, how: str
) -> None:
    """It is pending, but under a consumer that no longer holds it; there is no other live worker."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    await worker.step(await worker.take(), 2)
    ender = Ender(keys, "gateway", retention_ms=RETENTION_MS)
    assert not await ender.end_if_waiting(link, request, accepted.entry, "its worker has it")
    if how == "handed over":
        await worker.leases.hand_over([accepted.entry])
    else:
        await link.call("XGROUP", "DELCONSUMER", keys.requests("normal"), GROUP, "w1")
        assert (await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS).step()).repaired == 1
    assert await ender.end_if_waiting(link, request, accepted.entry, "the client cancelled it")
    assert await _terminals(link, keys, request.id) == [b"error"]
    assert await RequestQueue(link, keys).depth() == 0
    assert await worker.claimer.expired(1) == []


async def test_hazard_19_claim_and_end_of_a_waiting_request_race(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A worker claims the request while the canceller ends it: there is one terminal event."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    ender = Ender(keys, "gateway", retention_ms=RETENTION_MS)
    claimed = (await worker.claimer.new(1))[0]
    results = await asyncio.gather(
        worker.attach(claimed),
        ender.end(link, request.id, ref=accepted.entry, code=ErrorCode.CANCELLED, message="", request=request),
    )
    assert results[1] is not None
    # If the worker's fence came last, it follows the terminal event; the missing entry then shows the end.
    assert isinstance(await worker.attach(claimed), Ended | NotMine)
    assert len(await _terminals(link, keys, request.id)) == 1


async def test_another_reader_continues_where_the_first_one_left(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """A reader that leaves cancels nothing."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await worker.step(job, 3)
    first = await make_reader(redis_server.url, "g1")
    async with first.subscribe(Watch(request.id, "default", accepted.entry, request)) as subscription:
        seen = await follow_until(subscription, Seen(), tokens_seen(3))
    await first.close()
    assert await cancelled(link, keys, [request.id]) == set()
    await worker.step(job, 1)
    second = await make_reader(redis_server.url, "g2")
    resumed = resume(second.subscribe(Watch(request.id, "default")), seen.resume_id)
    await follow_until(resumed, seen, tokens_seen(4))
    assert not (await worker.renew(job))[job.ref].cancelled
    await worker.end(job)
    await follow_until(resumed, seen, lambda seen: False)
    assert (seen.tokens[0], len(seen.terminals)) == (expected(4), 1)


async def test_a_cancel_key_lives_as_long_as_its_request(link: Link, keys: Keys) -> None:
    """Without a known deadline, the lifetime comes from the request's `seen` key."""
    request = make_request()
    await enqueue(link, keys, request)
    await cancel(link, keys, request.id)
    ttl_ms, remembered_ms = await link.call_many([("PTTL", keys.cancel("r1")), ("PTTL", keys.seen("r1"))])
    assert abs(ttl_ms - remembered_ms) < 1000
    assert ttl_ms > 60_000


async def _add_just_after(ref: EntryRef, link: Link, keys: Keys, request: GenerationRequest) -> None:
    """Add an entry of class `normal` that is later than `ref`, and more urgent whenever a worker looks."""
    await link.call("XADD", keys.requests("normal"), f"{ref.order[0] + 1}-0", *bare_fields(request))


async def _terminals(link: Link, keys: Keys, request_id: str) -> list[bytes]:
    entries = await link.call("XRANGE", keys.reply(request_id), "-", "+")
    return [entry[1][1] for entry in entries if entry[1][1] in (b"finished", b"error")]
