"""Following many replies over one connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orcastream.broker.back_off import BackOff
from orcastream.broker.errors import ReplyConflict, UnknownRequest, WrongTenant
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.second_read import packed_read
from orcastream.schemas.events import Output, Run, encode_event
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker, OpenLink
from tests.broker.followers import blocked
from tests.broker.following import Seen, expected, flat, follow, follow_until, resume, tokens_seen
from tests.broker.proxy import LossyProxy
from tests.broker.scripted import enqueue, make_request, take_over
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer
from tests.redis_waiting import wait_until


async def test_many_replies_at_once(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Two hundred subscribers, who subscribe before and while the tokens arrive, over two connections."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    following, jobs = [], []
    for index in range(200):
        request = make_request(f"r{index}")
        await enqueue(link, keys, request)
        following.append(asyncio.create_task(follow(reader.subscribe(Watch(request.id, "default")))))
        jobs.append(await worker.take())
    for _ in range(3):
        await asyncio.gather(*(worker.step(job) for job in jobs))
    await asyncio.gather(*(worker.end(job) for job in jobs))
    async with asyncio.timeout(PATIENCE_S):
        followed = await asyncio.gather(*following)
    for seen in followed:
        assert (seen.tokens[0], len(seen.terminals)) == (expected(3), 1)
    clients = await link.call("CLIENT", "LIST")
    assert clients.count(b"name=gateway-") == 2


async def test_a_new_subscription_does_not_wait_for_the_blocked_read(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request("silent"))
    reader.subscribe(Watch("silent", "default"))
    await enqueue(link, keys, make_request("r1"))
    await worker.take()
    job = await worker.take()
    await worker.step(job)
    for _ in range(20):
        async with reader.subscribe(Watch("r1", "default")) as subscription:
            async with asyncio.timeout(PATIENCE_S):
                seen = await follow_until(subscription, Seen(), tokens_seen(1))
            assert seen.tokens[0] == [0]


async def test_none_of_many_new_subscriptions_waits_longer_than_the_first(
    redis_server: RedisServer, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read begins without the log that is followed next, and no log has anything."""
    reader = await make_reader(redis_server.url, loss_check_s=60)
    pauses: dict[int, float] = {}
    num_reads, done, failed = 0, asyncio.Event(), BackOff.failed

    def read(*args: Any, **options: Any) -> bytes:
        nonlocal num_reads
        num_reads += 1
        if num_reads < 30:
            asyncio.get_running_loop().call_soon(reader.subscribe, Watch(f"r{num_reads}", "default"))
        else:
            done.set()
        return packed_read(*args, **options)

    def pause_s(back_off: BackOff) -> float:
        return pauses.setdefault(num_reads, failed(back_off))

    monkeypatch.setattr("orcastream.broker.server_reading.packed_read", read)
    monkeypatch.setattr(BackOff, "failed", pause_s)
    reader.subscribe(Watch("r0", "default"))
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    assert max(pauses.values()) < 0.02, "the least is 2 ms, the most 0.1 s"


async def test_without_the_right_to_unblock_a_new_subscription_waits_for_the_blocked_read_alone(
    own_redis: Callable[..., RedisServer],
    open_link: OpenLink,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
) -> None:
    server = own_redis()
    link = await open_link(server.url)
    worker = await make_worker(server.url, "w1")
    reader = await make_reader(server.url, loss_check_s=1)
    await enqueue(link, keys, make_request())
    job = await worker.take()
    await worker.step(job)
    await enqueue(link, keys, make_request("silent"))
    reader.subscribe(Watch("silent", "default"))
    reading = await blocked(link)
    await link.call("ACL", "SETUSER", "default", "-client", "+client|id", "+client|list")
    for _ in range(3):
        async with reader.subscribe(Watch("r1", "default")) as subscription, asyncio.timeout(PATIENCE_S):
            assert (await follow_until(subscription, Seen(), tokens_seen(1))).tokens[0] == [0]
    assert await link.call("ACL", "LOG")
    assert await blocked(link) == reading


async def test_no_read_blocks_forever(
    redis_server: RedisServer, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of 0 ms would: loss checks that are to come more often than that come between reads."""
    reader = await make_reader(redis_server.url, loss_check_s=0.001)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(UnknownRequest, match="nothing is known"):
            await anext(reader.subscribe(Watch("unknown", "default")))
    assert caplog.text == ""


async def test_a_slow_subscriber_delays_no_other(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Two follow one reply; one of them reads nothing until the end: both see all of it."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request())
    slow, fast = reader.subscribe(Watch("r1", "default")), reader.subscribe(Watch("r1", "default"))
    job = await worker.take()
    for _ in range(6):
        await worker.step(job)
    await worker.end(job)
    assert (await follow(fast)).tokens[0] == expected(6)
    assert (await follow(slow)).tokens[0] == expected(6)


async def test_a_reader_reconnects_and_repeats_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Both of its connections are killed between any two tokens."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    accepted = await enqueue(link, keys, make_request())
    subscription = reader.subscribe(Watch("r1", "default", accepted.entry))
    job, seen = await worker.take(), Seen()
    for count in range(1, 7):
        for line in (await link.call("CLIENT", "LIST")).splitlines():
            if b"name=gateway-" in line and (count % 3 == 0 or b"name=gateway-replies" in line):
                await link.call_many([("CLIENT", "KILL", "ID", line.split()[0].removeprefix(b"id="))])
        await worker.step(job)
        await follow_until(subscription, seen, tokens_seen(count))
    await worker.end(job)
    await follow_until(subscription, seen, lambda seen: False)
    assert (seen.tokens[0], len(seen.terminals)) == (expected(6), 1)


async def test_a_dead_helper_does_not_go_unnoticed(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Only the connection that carries wake-ups and checks is killed."""
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    await enqueue(link, keys, make_request())
    reader.subscribe(Watch("r1", "default"))
    before = {line.split()[0] for line in await _named(link, b"gateway-helper")}
    await link.call("CLIENT", "KILL", "ID", next(iter(before)).removeprefix(b"id="))
    while not {line.split()[0] for line in await _named(link, b"gateway-helper")} - before:
        pass
    await reader.connected.wait()


async def test_resuming(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """From any id of the stream, with several choices at different lengths, nothing is repeated or skipped."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request(n=2))
    job = await worker.take()
    for choice, count in ((0, 2), (1, 1), (0, 1), (1, 3), (0, 2)):
        await worker.step(job, count, choice)
    await worker.end(job, [worker.next_run(job, 1, 1)])
    whole = [update async for update in reader.subscribe(Watch("r1", "default"))]
    tokens = [flat([run for one in whole for run in one.runs if run.choice == choice]) for choice in (0, 1)]
    for update in whole:
        rest = [one async for one in resume(reader.subscribe(Watch("r1", "default")), update.resume_id)]
        runs = [run for one in rest for run in one.runs]
        assert [flat([run for run in runs if run.choice == choice]) for choice in (0, 1)] == [
            known[count:] for known, count in zip(tokens, update.counts or (0, 0), strict=True)
        ]
        assert rest[-1].resume_id == whole[-1].resume_id
        assert rest[-1].terminal is not None


async def test_a_resume_point_inside_an_event_cuts_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """After a takeover events may be cut differently; the client's position counts."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request())
    job = await worker.take()
    await worker.step(job, 2)
    async with reader.subscribe(Watch("r1", "default")) as subscription:
        seen = await follow_until(subscription, Seen(), tokens_seen(2))
    await link.call("DEL", keys.reply("r1"))
    job = await worker.open(job.claimed)
    run = worker.next_run(job, 5)
    await job.log.append([run])
    await worker.end(job)
    resumed = [one async for one in resume(reader.subscribe(Watch("r1", "default")), seen.resume_id)]
    assert [run for one in resumed for run in one.runs] == [Run(0, 2, (20, 30, 40))]


async def test_a_log_that_ends_short_of_the_resume_point(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request())
    job = await worker.take()
    await worker.step(job, 2)
    await worker.end(job)
    with pytest.raises(ReplyConflict, match="ended before"):
        await follow(resume(reader.subscribe(Watch("r1", "default")), "3-00000000"))


async def test_tenants(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """A log is shown to its tenant only, and nothing is shown before the tenant is known."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request(tenant="acme"))
    job = await worker.take()
    await worker.step(job, 2)
    own = reader.subscribe(Watch("r1", "acme"))
    seen = await follow_until(own, Seen(), tokens_seen(2))
    assert seen.tokens
    with pytest.raises(WrongTenant):
        await anext(reader.subscribe(Watch("r1", "default")))
    headless = encode_event(Output((Run(0, 0, (1,)),)), make_request().form)
    await link.call("XADD", keys.reply("headless"), "5-1", *headless)
    with pytest.raises(WrongTenant):
        await anext(reader.subscribe(Watch("headless", "default")))


async def test_a_key_that_is_no_stream_silences_no_other_reply(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await link.call("SET", keys.reply("junk"), "junk")
    await enqueue(link, keys, make_request())
    junk, good = reader.subscribe(Watch("junk", "default")), reader.subscribe(Watch("r1", "default"))
    with pytest.raises(Exception, match="not a stream"):
        await anext(junk)
    job = await worker.take()
    await worker.end(job, [worker.next_run(job)])
    assert (await follow(good)).tokens[0] == [0]


async def test_foreign_entries_in_a_log_are_skipped(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    await enqueue(link, keys, make_request())
    job = await worker.take()
    await link.call("XADD", keys.reply("r1"), f"{job.log.epoch + 1}-0", "type", "tokens", "payload", "{}")
    job = await worker.open(job.claimed)
    await worker.end(job, [worker.next_run(job)])
    assert (await follow(reader.subscribe(Watch("r1", "default")))).tokens[0] == [0]


async def test_closing_ends_a_waiting_iteration(redis_server: RedisServer, make_reader: MakeReader) -> None:
    reader = await make_reader(redis_server.url)
    waiting = asyncio.create_task(follow(reader.subscribe(Watch("r1", "default"))))
    await asyncio.sleep(0)
    await reader.close()
    assert (await waiting).terminals == []


async def test_a_reader_outlives_a_restart(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Redis is killed and restarts with all its data: the reply continues from its position."""
    server = own_redis(aof="always")
    worker = await make_worker(server.url, "w1")
    await enqueue(worker.link, keys, make_request())
    reader = await make_reader(server.url)
    subscription = reader.subscribe(Watch("r1", "default"))
    job = await worker.take()
    await worker.step(job, 2)
    seen = await follow_until(subscription, Seen(), tokens_seen(2))
    server.restart()
    await worker.link.wait_lost()
    await worker.connect()
    job = await worker.open(job.claimed)
    await worker.step(job, 2)
    await worker.end(job)
    await follow_until(subscription, seen, lambda seen: False)
    assert (seen.tokens[0], seen.workers, len(seen.terminals)) == (expected(4), ["w1", "w1"], 1)


async def _named(link: Link, name: bytes) -> list[bytes]:
    return [line for line in (await link.call("CLIENT", "LIST")).splitlines() if b"name=" + name in line]


async def test_a_reader_leaves_a_server_that_was_cut_off_and_got_further_than_its_successor(
    own_redis: Callable[..., RedisServer], keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """The newest epoch is that of the old server: all that the new one has is older than what was read."""
    old = own_redis()
    new = own_redis(options=["--replicaof", "127.0.0.1", str(old.port), "--repl-diskless-sync-delay", "0"])
    way = LossyProxy(old.port)
    await way.listen()
    stays, goes = await make_worker(old.url, "stays"), await make_worker(new.url, "goes", lease_ms=1)
    await enqueue(stays.link, keys, make_request())
    job = await stays.take()
    await stays.step(job)
    with old.client() as master, new.client() as replica:
        await asyncio.to_thread(wait_until, lambda: replica.xlen(job.log.key) == master.xlen(job.log.key) == 2)
        replica.replicaof("NO", "ONE")
    taken = await goes.open(await take_over(goes))
    await goes.step(taken, 3)
    stays.epochs["r1"] = taken.log.epoch
    job = await stays.open(job.claimed)
    await stays.step(job)
    reader = await make_reader(way.url, loss_check_s=0.2)
    subscription = reader.subscribe(Watch("r1", "default"))
    async with asyncio.timeout(PATIENCE_S):
        seen = await follow_until(subscription, Seen(), tokens_seen(2))
        way.lead_to(new.port)
        await way.refuse()
        await way.listen()
        await follow_until(subscription, seen, tokens_seen(4))
        await goes.step(taken)
        await follow_until(subscription, seen, tokens_seen(5))
    assert seen.tokens[0] == expected(5)
    await way.refuse()
