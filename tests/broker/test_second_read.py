"""Second reads: when they are sent, what they save, and that nothing is lost or repeated by them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
from redis.client import Monitor

from orcastream.broker.followed import START
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.second_read import SecondReads, unread
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.followers import Followers, blocked, given_up_as_no_stream, write, xadd
from tests.broker.following import expected, follow
from tests.broker.scripted import Job, ScriptedWorker, take_jobs
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

NUM_LOGS = 16


def sent_twice(reads: SecondReads, came: Sequence[tuple[int, bool]], num_logs: int = NUM_LOGS) -> list[bool]:
    """Return which reads were sent with a second one; `came`: the logs in each reply, and whether more would follow."""
    sent = []
    for num_in_reply, more in came:
        sent.append(reads.is_due(num_logs))
        if sent[-1]:
            reads.came(num_in_reply, more=more)
        else:
            reads.came_alone(num_in_reply)
    return sent


def paying(reads: SecondReads) -> SecondReads:
    """Bring `reads` to where every read is sent with a second one."""
    assert sent_twice(reads, [(1, True)] * 3) == [False, False, True]
    return reads


def pauses(sent: Sequence[bool]) -> list[int]:
    """Return how many reads alone precede each one with a second read."""
    places = [-1, *[place for place, twice in enumerate(sent) if twice]]
    return [after - before - 1 for before, after in pairwise(places)]


def test_second_reads_that_pay_continue() -> None:
    assert all(sent_twice(paying(SecondReads()), [(1, True)] * 100))


@pytest.mark.parametrize("waste", [(1, False), (2, False), (NUM_LOGS, False), (2, True)])
def test_pauses_after_waste_double_up_to_a_bound(waste: tuple[int, bool]) -> None:
    sent = sent_twice(paying(SecondReads()), [waste] * 300)
    assert pauses(sent) == [0, 2, 4, 8, 16, 32, 64, 64, 64]


def test_one_that_pays_ends_the_pauses() -> None:
    reads = paying(SecondReads())
    assert pauses(sent_twice(reads, [(1, False)] * 34)) == [0, 2, 4, 8]
    assert all(sent_twice(reads, [(1, True)] * 5))
    assert pauses(sent_twice(reads, [(1, False)] * 9)) == [0, 2, 4]


def test_reads_in_which_nothing_came_change_nothing() -> None:
    reads = paying(SecondReads())
    assert all(sent_twice(reads, [(0, False), (0, True)] * 10))
    assert sent_twice(reads, [(1, False)]) == [True]
    assert not any(sent_twice(reads, [(0, False)] * 10))
    assert sent_twice(reads, [(1, True)] * 3) == [False, False, True]


def test_one_log_is_read_alone() -> None:
    assert not any(sent_twice(paying(SecondReads()), [(1, True)] * 10, num_logs=1))


def test_second_reads_resume_with_a_read_that_blocks() -> None:
    """Alone, the reads of an iteration bring one log, then the others: second reads must not meet the latter."""
    reads = paying(SecondReads())
    assert sent_twice(reads, [(NUM_LOGS - 1, False)]) == [True]
    sent = sent_twice(reads, [(1, True), (NUM_LOGS - 1, False), (1, True)])
    assert sent == [False, False, True]
    assert all(sent_twice(reads, [(1, True)] * 10))


def test_what_is_unread() -> None:
    first, second, third = entries = [(b"1-%d" % index, []) for index in (1, 2, 3)]
    assert unread(entries, START, START) == entries
    assert unread(entries, b"1-0", b"1-1") == [second, third]
    assert unread(entries, b"1-0", b"1-3") == []
    assert not unread(entries, b"1-0", START)  # a hole was found: all of the log is read again
    assert not unread(entries[:2], b"1-0", b"1-3")
    assert not unread([], b"1-0", b"1-0")
    assert unread([first], b"1-0", b"1-0") == [first]


@contextmanager
def reads_of(server: RedisServer) -> Iterator[Callable[[], list[str]]]:
    """The XREADs that the server carries out meanwhile, as text, from a function that may be called once."""
    with server.client() as client, client.monitor() as monitor:
        yield lambda: list(_until_marked(server, monitor))


def _until_marked(server: RedisServer, monitor: Monitor) -> Iterator[str]:
    with server.client() as client:
        client.echo("no more")
    while (command := monitor.next_command()["command"]) != "ECHO no more":
        if command.startswith("XREAD "):
            yield command


async def test_one_wait_per_write_to_many_logs(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """The gateway wakes up once for all events of an iteration, not once for the first and once for the others."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, NUM_LOGS)
    followers = Followers(reader, jobs)
    num_writes = 60
    with reads_of(redis_server) as reads:
        for count in range(1, num_writes + 1):
            await blocked(link)
            await write(jobs, worker)
            await followers.see(count)
        commands = reads()
    assert len([command for command in commands if " BLOCK " in command]) < 1.4 * num_writes


async def test_second_reads_rest_while_one_log_alone_is_written_to(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 4)
    silent, active = Followers(reader, jobs[1:]), Followers(reader, jobs[:1])
    with reads_of(redis_server) as reads:
        for count in range(1, 61):
            await blocked(link)
            await write(jobs[:1], worker)
            await active.see(count)
        commands = reads()
    second = [command for command in commands if " BLOCK " not in command]
    assert 0 < len(second) < 10
    await write(jobs[1:], worker)
    await silent.see(1)


@pytest.mark.parametrize("num_at_once", [1, 3, 40])
@pytest.mark.usefixtures("always_twice")
async def test_each_event_arrives_once_and_in_order(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    num_at_once: int,
) -> None:
    """Two workers write without waiting for the reader: also more events of a log than a second read asks for."""
    num_tokens = 60 * num_at_once
    reader = await make_reader(redis_server.url)
    workers = [await make_worker(redis_server.url, name) for name in ("w1", "w2")]
    jobs = [await take_jobs(link, keys, worker, 5, max_tokens=num_tokens) for worker in workers]
    watches = [Watch(job.request.id, "default") for job in [*jobs[0], *jobs[1]]]
    replies = [asyncio.create_task(follow(reader.subscribe(watch))) for watch in watches]

    async def write_all(worker: ScriptedWorker, ours: Sequence[Job]) -> None:
        for _ in range(60):
            await worker.link.call_many([xadd(worker, job) for job in ours for _ in range(num_at_once)])
        for job in ours:
            await worker.end(job)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(write_all, workers, jobs))
        for seen in await asyncio.gather(*replies):
            assert (seen.tokens[0], len(seen.terminals)) == (expected(num_tokens), 1)


@pytest.mark.usefixtures("always_twice")
async def test_a_hole_in_the_first_reply_is_not_passed_over_with_the_second(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """A log is replaced under its reader, by one with a token before the read position that the reader lacks."""
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    holed, other = await take_jobs(link, keys, worker, 2)
    of_holed, of_other = Followers(reader, [holed]), Followers(reader, [other])
    await write([holed, other], worker)
    await link.call("XADD", holed.log.key, f"{holed.log.epoch}-5", "type", "tokens", "payload", "{}")
    await write([other], worker)
    await of_other.see(2)  # so the other entry has been read, too
    first = await link.call("XRANGE", holed.log.key, "-", "+", "COUNT", 2)
    reading = await blocked(link)
    again = [("XADD", holed.log.key, entry_id, *fields) for entry_id, fields in first]
    await worker.link.call_many(
        [("DEL", holed.log.key), *again, xadd(worker, holed), xadd(worker, holed, at=7), xadd(worker, other)]
    )
    await of_holed.see(3)
    await of_other.see(3)
    assert await blocked(link) == reading


@pytest.mark.usefixtures("always_twice")
async def test_a_key_that_is_no_stream_breaks_no_connection(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """One appears while the reader waits, so that the second read is refused after the first; another was there."""
    reader = await make_reader(redis_server.url, loss_check_s=60)
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 2)
    followers = Followers(reader, jobs)
    junk = reader.subscribe(Watch("junk", "default"))
    await write(jobs, worker)
    await followers.see(1)
    reading = await blocked(link)
    await worker.link.call_many([("SET", keys.reply("junk"), "junk"), *[xadd(worker, job) for job in jobs]])
    await given_up_as_no_stream(junk)
    await link.call("SET", keys.reply("old"), "junk")
    await given_up_as_no_stream(reader.subscribe(Watch("old", "default")))
    await followers.see(2)
    await write(jobs, worker)
    await followers.see(3)
    assert await blocked(link) == reading
