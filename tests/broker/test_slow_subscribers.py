"""A subscriber that takes little: what is read ahead of it is bounded, and it gets everything in the end."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.errors import UnknownRequest
from orcastream.broker.loss import Watch
from orcastream.broker.queue import RequestQueue
from orcastream.broker.reader import ReplyReader
from orcastream.broker.subscription import MAX_UNREAD_BYTES, Subscription
from orcastream.schemas.events import Output, Run, encode_event
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.following import Seen, expected, flat, follow, follow_until, tokens_seen
from tests.broker.scripted import Job, ScriptedWorker, enqueue, make_request
from tests.patience import PATIENCE_S
from tests.redis_cluster import RedisCluster
from tests.redis_server import RedisServer

NUM_EVENTS = 1500
LOGPROBS = (-0.5, [[token, -0.5 * token] for token in range(20)])
MUCH = (-0.5, [[token, -0.5 * token] for token in range(320)])
"""As much as 16 choices have."""
EVENT_BYTES = 250
"""The least that an event with these takes in its log."""
READ_AHEAD = MAX_UNREAD_BYTES // EVENT_BYTES + 1


async def begun(worker: ScriptedWorker, link: Connection, keys: Keys) -> Job:
    await enqueue(link, keys, make_request(max_tokens=2 * NUM_EVENTS))
    return await worker.take()


async def publish(worker: ScriptedWorker, job: Job, logprobs: Any = LOGPROBS) -> None:
    """Publish NUM_EVENTS more events of one token with its log probabilities."""
    first = job.log.lend()[1]
    runs = [replace(worker.next_run(job), logprobs=(logprobs,)) for _ in range(NUM_EVENTS)]
    events = [encode_event(Output((run,)), job.request.form) for run in runs]
    names = [f"{job.log.epoch}-{index}" for index in range(first, first + NUM_EVENTS)]
    written = [("XADD", job.log.key, name, *event) for name, event in zip(names, events, strict=True)]
    assert await worker.link.call_many(written) == [name.encode() for name in names]
    job.log.take_back(first + NUM_EVENTS)


async def full(subscription: Subscription) -> None:
    """Wait until nothing more is read for it."""
    while not subscription._state.is_full:  # noqa: ASYNC110 (by the reader's task)
        await asyncio.sleep(0.001)


async def runs_of(subscription: Subscription) -> Sequence[Run]:
    return [run async for update in subscription for run in update.runs]


async def see_all_at_their_pace(worker: ScriptedWorker, job: Job, reader: ReplyReader) -> None:
    """One of three follows as it comes, one from its middle on, one takes nothing before all of it is written."""
    watch = Watch(job.request.id, "default")
    slow, fast = reader.subscribe(watch), reader.subscribe(watch)
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        seen = await follow_until(fast, Seen(), tokens_seen(NUM_EVENTS))
        await full(slow)
        assert len(slow._state.unread) <= READ_AHEAD
        assert (await slow.lags(), await fast.lags()) == (True, False)
        late = reader.subscribe(watch)
        of_late = await follow_until(late, Seen(), tokens_seen(NUM_EVENTS))
        of_slow = await follow_until(slow, Seen(), tokens_seen(NUM_EVENTS - READ_AHEAD))
        await publish(worker, job)
        await follow_until(fast, seen, tokens_seen(2 * NUM_EVENTS))
        await full(slow)
        assert len(slow._state.unread) <= READ_AHEAD
        await worker.end(job)
        for subscription, so_far in ((fast, seen), (late, of_late), (slow, of_slow)):
            await follow_until(subscription, so_far, lambda _: False)
            assert (so_far.tokens[0], len(so_far.terminals)) == (expected(2 * NUM_EVENTS), 1)
        assert seen.resume_id == of_late.resume_id == of_slow.resume_id


async def test_what_is_read_ahead_is_bounded_and_the_reply_complete(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    job = await begun(worker, worker.link, keys)
    await see_all_at_their_pace(worker, job, await make_reader(redis_server.url))


async def test_what_is_read_ahead_is_bounded_in_a_cluster(
    cluster: RedisCluster, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    link = await connect(cluster.url)
    worker = await make_worker(cluster.url, "w1")
    job = await begun(worker, link, keys)
    await see_all_at_their_pace(worker, job, await make_reader(cluster.url))
    await link.close()


async def test_log_probabilities_survive_a_pause(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    job = await begun(worker, worker.link, keys)
    reader = await make_reader(redis_server.url)
    slow = reader.subscribe(Watch("r1", "default"))
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        await full(slow)
        await worker.end(job)
        runs = await runs_of(slow)
    assert flat(runs) == expected(NUM_EVENTS)
    assert [run for run in runs if run.logprobs is None or list(run.logprobs[0]) != list(LOGPROBS)] == []


async def test_when_tokens_arrived_is_unknown_after_a_pause(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    job = await begun(worker, worker.link, keys)
    reader = await make_reader(redis_server.url)
    slow = reader.subscribe(Watch("r1", "default"))
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        await full(slow)
        await worker.end(job)
        known = [update.arrived_s > float("-inf") async for update in slow]
    assert known[0]
    assert not known[-1]


async def num_bytes_sent(link: Connection) -> int:
    told = await link.call("INFO", "stats")
    return int(told.partition(b"total_net_output_bytes:")[2].split()[0])


async def see_large_entries(worker: ScriptedWorker, job: Job, reader: ReplyReader) -> None:
    """Follow a reply of large entries that is there already, and count what its server sends meanwhile."""
    node = await worker.link.link_for(job.log.key)
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job, MUCH)
        await worker.end(job)
        before = await num_bytes_sent(node)
        seen = await follow(reader.subscribe(Watch(job.request.id, "default")))
        sent = await num_bytes_sent(node) - before
    assert seen.tokens[0] == expected(NUM_EVENTS)
    assert sent < 2 * await node.call("MEMORY", "USAGE", job.log.key)


async def test_entries_for_which_there_is_no_room_are_not_asked_for(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    job = await begun(worker, worker.link, keys)
    await see_large_entries(worker, job, await make_reader(redis_server.url))


async def test_entries_for_which_there_is_no_room_are_not_asked_for_in_a_cluster(
    cluster: RedisCluster, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(cluster.url, "w1")
    job = await begun(worker, worker.link, keys)
    await see_large_entries(worker, job, await make_reader(cluster.url))


@pytest.fixture
def num_read_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a reader reads a log again from its start."""
    count, read_again = [0], ReplyReader._read_again

    def read(reader: ReplyReader, followed: object) -> None:
        count[0] += 1
        read_again(reader, followed)  # type: ignore[arg-type]  # whatever it is called with

    monkeypatch.setattr(ReplyReader, "_read_again", read)
    return count


async def test_a_reply_that_expired_before_it_was_taken_ends_with_an_error_and_is_not_computed_again(
    redis_server: RedisServer,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    num_read_again: list[int],
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    request = make_request(max_tokens=2 * NUM_EVENTS)
    accepted = await enqueue(worker.link, keys, request)
    job = await worker.take()
    reader = await make_reader(redis_server.url, loss_check_s=0.05)
    slow = reader.subscribe(Watch(request.id, "default", accepted.entry, request))
    (followed,) = reader._followed
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        await full(slow)
        await worker.end(job)
        while not followed.has_ended:  # noqa: ASYNC110 (by the reader's task)
            await asyncio.sleep(0.01)
        await worker.link.call("DEL", job.log.key)
        seen = Seen()
        with pytest.raises(UnknownRequest):
            await follow_until(slow, seen, lambda _: False)
    assert seen.tokens[0] == expected(len(seen.tokens[0]))
    assert (await RequestQueue(worker.link, keys).depth(), num_read_again) == (0, [0])


async def test_entries_read_after_a_pause_postpone_no_check(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Else the end of a request whose client reads slowly, but steadily, is found only once its log has expired."""
    worker = await make_worker(redis_server.url, "w1")
    job = await begun(worker, worker.link, keys)
    reader = await make_reader(redis_server.url, loss_check_s=PATIENCE_S)
    slow = reader.subscribe(Watch("r1", "default"))
    (followed,) = reader._followed
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        await full(slow)
        checked_at = followed.checked_at
        await follow_until(slow, Seen(), tokens_seen(READ_AHEAD))
        await full(slow)
    assert followed.checked_at == checked_at


async def test_a_request_that_redis_lost_while_its_client_took_nothing_is_queued_again(
    redis_server: RedisServer, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    request = make_request(max_tokens=2 * NUM_EVENTS)
    accepted = await enqueue(worker.link, keys, request)
    job = await worker.take()
    reader = await make_reader(redis_server.url, loss_check_s=0.05)
    slow = reader.subscribe(Watch(request.id, "default", accepted.entry, request))
    async with asyncio.timeout(PATIENCE_S):
        await publish(worker, job)
        await full(slow)
        await worker.link.call("FLUSHDB")
        queue = RequestQueue(worker.link, keys)
        await queue.ensure_groups()
        while not await queue.depth():
            pass
        again = await worker.take()
        await publish(worker, again)
        await worker.end(again)
        seen = await follow(slow)
    assert (seen.tokens[0], len(seen.terminals)) == (expected(NUM_EVENTS), 1)
