"""Hazards of several writers to one reply log: retries, fences, resurrected logs, servers that refuse to write."""

from typing import Any

import pytest

from orcastream.broker.attach import Attached, Duplicate, Ended, NotMine
from orcastream.broker.errors import Fenced, LinkLost, LogBusy, ReplyConflict, Unwritable
from orcastream.broker.fold import fold_log
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.queue import RequestQueue, ensure_groups
from orcastream.schemas.events import Ending, Output, Run, Started, Terminal, Usage, encode_event
from orcastream.schemas.keys import Keys
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason, first_finish
from tests.broker.conftest import Begin, MakeReader, MakeWorker, OpenLink
from tests.broker.following import Seen, expected, follow, follow_until, tokens_seen
from tests.broker.proxy import LossyProxy
from tests.broker.scripted import EOS, bare_fields, enqueue, make_request, take_over
from tests.redis_server import RedisServer


async def test_hazard_01_lossy_retry_that_coalesces(
    redis_server: RedisServer,
    proxy: LossyProxy,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
) -> None:
    """The reply to a write is lost; by the time of the retry the worker has more tokens."""
    request = make_request()
    await enqueue(link, keys, request)
    worker = await make_worker(proxy.url, "w1")
    job = await worker.take()
    await worker.step(job, 2)
    proxy.lose_next_reply()
    with pytest.raises(LinkLost):
        await worker.step(job, 1)
    unpublished = worker.next_run(job, 1)
    with pytest.raises(LinkLost):
        await job.log.append([unpublished])
    await worker.connect()
    again = await worker.attach(job.claimed)
    assert isinstance(again, Attached)
    assert again.log.epoch > job.log.epoch
    assert again.fold.tokens[0] == expected(3), "the write whose reply was lost is in the log"
    assert job.tokens[0][: len(again.fold.tokens[0])] == again.fold.tokens[0]
    job.log = again.log
    await job.log.append([unpublished])
    await worker.end(job)
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert seen.tokens[0] == expected(4)
    entries = await link.call("XRANGE", keys.reply(request.id), "-", "+")
    assert len(entries) == 6, "two started events, three writes of tokens, one terminal"


@pytest.mark.parametrize("choices", [1, 2])
async def test_hazard_02_overrun_past_the_end_after_a_takeover(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader, choices: int
) -> None:
    """A worker dies between the token that ends a choice and the terminal event."""
    request = make_request(n=choices, max_tokens=8)
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await first.take()
    await job.log.append([Run(0, 0, (7, EOS))] + [Run(choice, 0, (5,)) for choice in range(1, choices)])
    await first.close()
    taken = await second.open(await take_over(second))
    finishes = [first_finish(taken.fold.tokens[c], request.payload.sampling, {EOS}, 8) for c in range(choices)]
    assert finishes[0] == (2, FinishReason.STOP), "the fold shows that choice 0 has ended, before any forward pass"
    assert finishes[1:] == [None] * (choices - 1)
    runs = [second.next_run(taken, 2, choice) for choice in range(1, choices)]
    await second.end(taken, runs)
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert seen.tokens[0] == [7, EOS]
    assert all(len(seen.tokens[choice]) == 3 for choice in range(1, choices))


async def test_hazard_02_an_overrun_is_an_error_and_never_silent(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    """A foreign worker generated past the end: its terminal counts fewer tokens than were delivered."""
    _, job = await begin()
    request = job.request
    await job.log.append([Run(0, 0, (7, EOS, 8))])
    await job.log.end(Terminal((Ending(FinishReason.STOP, 2),), Usage(3, 2)))
    with pytest.raises(ReplyConflict, match="ended after 2 tokens, 3 were delivered"):
        await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))


@pytest.mark.parametrize("began", [0, 1], ids=["the earlier begins", "the later begins"])
async def test_hazard_05_fence_duel_over_two_entries_of_one_id(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader, began: int
) -> None:
    """A producer without the script added a request twice, and two workers run it: the one that began it continues."""
    request = make_request()
    await ensure_groups(link, keys)
    for _ in range(2):
        await link.call("XADD", keys.requests("normal"), "*", *bare_fields(request))
    workers = [await make_worker(redis_server.url, f"w{i}") for i in range(2)]
    claims = [(await worker.claimer.new(1))[0] for worker in workers]
    first, second = workers[began], workers[1 - began]
    job = await first.open(claims[began])
    await first.step(job)
    assert await second.attach(claims[1 - began]) == Duplicate(claims[began].ref)
    with pytest.raises(Fenced):
        await first.step(job)
    job = await first.open(claims[began])
    await first.step(job, 2)
    await first.end(job)
    assert await RequestQueue(link, keys).depth() == 0
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert (seen.tokens[0], len(seen.terminals)) == (expected(3), 1)


async def test_hazard_05_fence_duel_after_a_lost_entry(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The entry that began the log was lost, and two others arrived: the earlier of the two continues."""
    await ensure_groups(link, keys)
    for _ in range(3):
        await link.call("XADD", keys.requests("normal"), "*", *bare_fields(make_request()))
    workers = [await make_worker(redis_server.url, f"w{i}") for i in range(3)]
    lost, *claims = [(await worker.claimer.new(1))[0] for worker in workers]
    await workers[0].step(await workers[0].open(lost))
    await link.call("XDEL", keys.requests("normal"), lost.ref.entry_id)
    await workers[2].open(claims[1])
    earlier = await workers[1].open(claims[0])
    assert await workers[2].attach(claims[1]) == Duplicate(claims[0].ref)
    earlier = await workers[1].open(claims[0])
    await workers[1].step(earlier, 2)
    assert fold_log(await link.call("XRANGE", keys.reply("r1"), "-", "+")).tokens == [expected(3)]


async def test_hazard_05_seen_follows_the_entry_that_stays(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """`seen` named the later entry: it is updated to the remaining one, or a check would report a loss."""
    request = make_request()
    await ensure_groups(link, keys)
    early = await link.call("XADD", keys.requests("normal"), "*", *bare_fields(request))
    await enqueue(link, keys, request)
    workers = [await make_worker(redis_server.url, f"w{i}") for i in range(2)]
    claims = [(await worker.claimer.new(1))[0] for worker in workers]
    await workers[0].open(claims[0])
    assert isinstance(await workers[1].attach(claims[1]), Duplicate)
    found = await RequestQueue(link, keys).find(request.id)
    assert found is not None
    assert found.ref.entry_id == early.decode()


async def test_hazard_07_resurrection_of_an_expired_log(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A paused worker wakes up when the request has long been finished and its log has expired."""
    request = make_request()
    await enqueue(link, keys, request)
    sleeper, other = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await sleeper.take()
    await sleeper.step(job)
    taken = await other.open(await take_over(other))
    await other.end(taken)
    await link.call("PEXPIRE", keys.reply(request.id), 0)
    with pytest.raises(Fenced):
        await sleeper.step(job)
    assert await sleeper.attach(job.claimed) == NotMine()
    assert await link.call("EXISTS", keys.reply(request.id)) == 0


async def test_hazard_12_fence_after_the_terminal(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """A takeover's fence lands after the terminal event that the old owner has only now written."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await first.take()
    await first.step(job, 2)
    claimed = await take_over(second)
    await job.log.end(first.terminal(job))
    fence = f"{job.log.epoch + 1}-0"
    started: Any = job.fold.started
    await link.call("XADD", keys.reply(request.id), fence, *encode_event(started, request.form))
    stray = encode_event(Output((Run(0, 2, (666,)),)), request.form)
    await link.call("XADD", keys.reply(request.id), f"{job.log.epoch + 1}-1", *stray)
    attachment = await second.attach(claimed)
    assert isinstance(attachment, Ended)
    assert attachment.fold.tokens[0] == expected(2)
    assert await RequestQueue(link, keys).depth() == 0, "a worker that finds a terminal event finishes the cleanup"
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert (seen.tokens[0], len(seen.terminals)) == (expected(2), 1)


async def test_hazard_24_out_of_memory_taken_for_a_refusal(
    redis_server: RedisServer, link: Link, make_reader: MakeReader, begin: Begin
) -> None:
    """A server that cannot write now has not fenced any worker: the worker attaches again and continues."""
    worker, job = await begin(2)
    request = job.request
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unwritable, match="OOM") as caught:
            await worker.step(job)
        assert caught.value.code == "OOM"
        with pytest.raises(Unwritable):
            await worker.attach(job.claimed)
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    job = await worker.open(job.claimed)
    assert job.tokens[0] == expected(2)
    await worker.step(job)
    await worker.end(job)
    seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert seen.tokens[0] == expected(3)


async def test_hazard_24_a_read_only_server_is_no_refusal(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, open_link: OpenLink
) -> None:
    """The worker leaves a server that became a replica, as in a failover: the epoch ends with its connection."""
    server = own_redis()
    link = await open_link(server.url)
    await enqueue(link, keys, make_request())
    worker = await make_worker(server.url, "w1")
    job = await worker.take()
    await link.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(Unwritable) as caught:
        await worker.step(job)
    assert caught.value.code == "READONLY"
    await link.call("REPLICAOF", "NO", "ONE")
    again = await make_worker(server.url, "w1")
    job = await again.open(job.claimed)
    await again.step(job)


async def test_hazard_25_seed_lost(redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker) -> None:
    """A continuation samples with the seed of the first started event, whatever later ones say."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    claimed = (await first.claimer.new(1))[0]
    chosen = Started("other", "demo", "default", "normal", str(claimed.ref), 4711, 3)
    await link.call("XADD", keys.reply(request.id), "5-0", *encode_event(chosen, request.form))
    job = await first.open(claimed)
    started: Any = job.fold.started
    assert started.seed == derived_seed(request.id), "the seed that this worker would have chosen"
    taken = await second.open(await take_over(second))
    assert (job.fold.first_seed, taken.fold.first_seed) == (4711, 4711)
    await link.call("DEL", keys.reply(request.id))
    again = await second.open(taken.claimed)
    assert again.fold.first_seed == derived_seed(request.id), "the log was lost: derived from the id again"


async def test_a_log_accepts_nothing_after_its_terminal_or_during_a_write(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """At most one write is in flight, and nothing follows the end."""
    await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await job.log.end(worker.terminal(job))
    with pytest.raises(LogBusy):
        await worker.step(job)


async def test_a_follower_sees_each_epoch(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """A live takeover: the client sees one sequence, and which worker wrote it."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    subscription = (await make_reader(redis_server.url)).subscribe(Watch(request.id, "default"))
    job = await first.take()
    await first.step(job, 2)
    seen = await follow_until(subscription, Seen(), tokens_seen(2))
    taken = await second.open(await take_over(second))
    with pytest.raises(Fenced):
        await first.step(job)
    await second.step(taken, 2)
    await second.end(taken)
    await follow_until(subscription, seen, lambda seen: False)
    assert (seen.tokens[0], seen.workers) == (expected(4), ["w1", "w2"])
