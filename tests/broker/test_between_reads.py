"""What happens to a log, to its followers or to the connection between a read and the second one sent with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.reader import ReplyReader
from orcastream.schemas.keys import Keys
from tests.broker.apart_proxy import ApartProxy
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.followers import Followers, blocked, given_up_as_no_stream, xadd
from tests.broker.following import Seen, follow_until, tokens_seen
from tests.broker.scripted import Job, ScriptedWorker, enqueue, make_request, take_jobs
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("always_twice")


@pytest.fixture
async def apart(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApartProxy]:
    """Between the reader and the shared server."""
    monkeypatch.setattr("tests.tcp_proxy._PIECE_BYTES", 1)
    proxy = ApartProxy(redis_server.port)
    await proxy.listen()
    yield proxy
    await proxy.refuse()


Two = tuple[ScriptedWorker, Job, Job, ReplyReader]


@pytest.fixture
async def two(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    apart: ApartProxy,
) -> Two:
    """A worker, its two requests, and a reader."""
    worker = await make_worker(redis_server.url, "w1")
    first, other = await take_jobs(link, keys, worker, 2)
    return worker, first, other, await make_reader(apart.url, loss_check_s=60)


async def next_read(
    apart: ApartProxy, link: Link, worker: ScriptedWorker, jobs: Sequence[Job], *, cut: bool = False
) -> bytes:
    """Publish a token of each job; return the reader's connection once the server has its next read, but no second."""
    await blocked(link)
    await apart.hold_second(cut=cut)
    await worker.link.call_many([xadd(worker, job) for job in jobs])
    async with asyncio.timeout(PATIENCE_S):
        await apart.held.wait()
        return await blocked(link)


async def test_the_first_is_refused_and_the_second_answered(
    apart: ApartProxy, link: Link, keys: Keys, two: Two
) -> None:
    """A key that was no stream is one by then: no reply is given up, and nothing is lost or repeated."""
    worker, first, other, reader = two
    followers = Followers(reader, [first, other])
    await worker.link.call_many([xadd(worker, job) for job in (first, other)])
    await followers.see(1)
    reading = await blocked(link)
    await enqueue(link, keys, make_request("late"))
    late = await worker.take()
    (log,) = await link.call_many([("DUMP", late.log.key)])
    await link.call("SET", late.log.key, "junk")
    await apart.hold_second()
    of_late = Followers(reader, [late])
    async with asyncio.timeout(PATIENCE_S):
        await apart.answered.wait()
    await link.call("RESTORE", late.log.key, 0, log, "REPLACE")
    await worker.link.call_many([xadd(worker, job) for job in (first, other, late)])
    apart.let_go()
    await followers.see(2)
    await of_late.see(1)
    await worker.link.call_many([xadd(worker, job) for job in (first, other, late)])
    await followers.see(3)
    await of_late.see(2)
    assert await blocked(link) == reading


Change = Callable[[Link, Job], Awaitable[object]]


async def expire(link: Link, job: Job) -> None:
    await link.call("PEXPIRE", job.log.key, 1)
    while await link.call("EXISTS", job.log.key):
        pass


async def flush(link: Link, job: Job) -> None:
    await link.call("FLUSHALL")


async def trim(link: Link, job: Job) -> None:
    await link.call("XTRIM", job.log.key, "MAXLEN", 0)


async def trim_to_the_newest(link: Link, job: Job) -> None:
    await link.call("XTRIM", job.log.key, "MAXLEN", 1)


async def delete_the_newest(link: Link, job: Job) -> None:
    newest = await link.call("XREVRANGE", job.log.key, "+", "-", "COUNT", 1)
    await link.call("XDEL", job.log.key, newest[0][0])


@pytest.mark.parametrize("change", [expire, flush, trim, trim_to_the_newest, delete_the_newest])
async def test_entries_that_were_read_vanish_before_the_second(
    apart: ApartProxy, link: Link, two: Two, change: Change
) -> None:
    worker, first, other, reader = two
    followers = Followers(reader, [first, other])
    reading = await next_read(apart, link, worker, [first, other])
    await worker.link.call_many([xadd(worker, first)])
    async with asyncio.timeout(PATIENCE_S):
        await apart.answered.wait()
    await change(link, first)
    await worker.link.call_many([xadd(worker, job) for job in (first, other)])
    apart.let_go()
    await worker.link.call_many([xadd(worker, other)])
    await followers.see(3)
    assert await blocked(link) == reading


async def test_a_log_is_replaced_by_a_key_that_is_no_stream_before_the_second(
    apart: ApartProxy, link: Link, two: Two
) -> None:
    worker, first, other, reader = two
    of_first, of_other = Followers(reader, [first]), Followers(reader, [other])
    broken = reader.subscribe(Watch(first.request.id, "default"))
    reading = await next_read(apart, link, worker, [first, other])
    await worker.link.call_many([xadd(worker, first), ("SET", first.log.key, "junk"), xadd(worker, other)])
    apart.let_go()
    await of_first.see(2)
    async with asyncio.timeout(PATIENCE_S):
        await follow_until(broken, Seen(), tokens_seen(2))
    await given_up_as_no_stream(broken)
    await of_other.see(2)
    assert await blocked(link) == reading


async def test_another_epoch_begins_before_the_second(apart: ApartProxy, link: Link, two: Two) -> None:
    """The second brings what the first worker wrote after the first read, and the beginning of the second worker."""
    worker, first, other, reader = two
    followers = Followers(reader, [first, other])
    await next_read(apart, link, worker, [first, other])
    await worker.link.call_many([xadd(worker, first)])
    await worker.link.call_many([xadd(worker, first), xadd(worker, other)])
    first = await worker.open(first.claimed)
    apart.let_go()
    await worker.link.call_many([xadd(worker, other), xadd(worker, other)])
    await followers.see(3)
    await worker.link.call_many([xadd(worker, first), xadd(worker, other)])
    await followers.see(4)


async def test_the_connection_breaks_between_both_replies(apart: ApartProxy, link: Link, two: Two) -> None:
    """What the first brought arrives over the next connection, once."""
    worker, first, other, reader = two
    followers = Followers(reader, [first, other])
    reading = await next_read(apart, link, worker, [first, other], cut=True)
    await worker.link.call_many([xadd(worker, job) for job in (first, other)])
    await followers.see(2)
    assert await blocked(link) != reading


async def test_logs_are_left_and_followed_anew_before_the_second(apart: ApartProxy, link: Link, two: Two) -> None:
    """One by its only follower, one by one of two: nobody gets what the reads in flight bring to a former follower."""
    worker, first, other, reader = two
    leaving = [reader.subscribe(Watch(job.request.id, "default")) for job in (first, other)]
    staying = Followers(reader, [other])
    reading = await next_read(apart, link, worker, [first, other])
    await staying.see(1)
    await worker.link.call_many([xadd(worker, job) for job in (first, other)])
    async with asyncio.timeout(PATIENCE_S):
        await apart.answered.wait()
    for subscription in leaving:
        subscription.close()
    anew = Followers(reader, [first, other])
    apart.let_go()
    for followers in (staying, anew):
        await followers.see(2)
    await worker.link.call_many([xadd(worker, job) for job in (first, other)])
    for followers in (staying, anew):
        await followers.see(3)
    assert await blocked(link) == reading
