"""Tokens of many reply logs in one write, as they arrive, with no caller waiting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orcastream.broker.errors import BrokerError, Fenced, LinkLost, LogBusy
from orcastream.broker.fold import fold_log
from orcastream.broker.link import Link
from orcastream.broker.reply_log import append_many
from orcastream.broker.token_stream import TokenStream
from orcastream.broker.token_writer import TokenWriter
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Output, Run
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import Job, fence, take_jobs
from tests.redis_server import RedisServer


class Writing:
    """A writer for the test, and what it reported."""

    def __init__(self) -> None:
        self.num_written = 0
        self.settled: dict[Any, BrokerError | None] = {}
        self.writer = TokenWriter(self._written, self._settled)

    def open(self, job: Job) -> TokenStream:
        """A stream of the job's tokens; its owner is the job's log."""
        job.tokens = job.tokens or [[]]
        stream = self.writer.open(job.log, job.tokens[0], len(job.tokens[0]), job.log)
        assert stream is not None
        return stream

    def send(self, streams: Sequence[TokenStream], *tokens: int) -> None:
        """Send each token to each stream, in one turn of the event loop."""
        for token in tokens:
            assert self.writer.add(streams, [token] * len(streams)) == []
        self.writer.send()

    def _written(self, num_tokens: int) -> None:
        assert num_tokens > 0
        self.num_written += num_tokens

    def _settled(self, stream: TokenStream, failure: BrokerError | None) -> None:
        assert stream.owner not in self.settled
        assert stream.writer is None
        self.settled[stream.owner] = failure


@pytest.fixture
def writing() -> Writing:
    return Writing()


async def logged(link: Link, keys: Keys, job: Job) -> list[list[int]]:
    """Return the entry indices and the tokens of a log with one epoch."""
    entries = await link.call("XRANGE", keys.reply(job.request.id), "-", "+")
    return [[int(entry_id.partition(b"-")[2]) for entry_id, _ in entries], fold_log(entries).tokens[0]]


async def test_tokens_of_many_logs_become_the_events_that_append_writes(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 3)
    streams = [writing.open(job) for job in jobs]
    for token in range(12):  # from event 9 to event 10 ids and replies get longer
        writing.send(streams, token * 10_000)
        await writing.writer.settled()
        assert writing.num_written == 3 * (token + 1)
    for job, stream in zip(jobs, streams, strict=True):
        with pytest.raises(LogBusy):
            await job.log.append([Run(0, 12, (1,))])
        stream.close()
        assert stream.num_logged == 12
        job.tokens[0].append(7)
        await job.log.append([Run(0, 12, (7,))])
        assert await logged(link, keys, job) == [list(range(14)), job.tokens[0]]
    assert writing.settled == {}
    assert writing.writer.clock.busy_s > 0


async def test_tokens_that_arrive_during_a_write_go_into_the_next(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    """As one event each; no ids are skipped for a shared event."""
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 2)
    streams = [writing.open(job) for job in jobs]
    writing.send(streams, 1)
    writing.send(streams, 2)
    writing.send(streams[:1], 3, 4)
    assert writing.num_written == 0
    await writing.writer.settled()
    assert writing.num_written == 6
    writing.send(streams, 5)
    await writing.writer.settled()
    assert await logged(link, keys, jobs[0]) == [[0, 1, 2, 3], [1, 2, 3, 4, 5]]
    assert await logged(link, keys, jobs[1]) == [[0, 1, 2, 3], [1, 2, 5]]


async def test_a_stream_begins_after_the_existing_log(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    """And it writes what its owner has beyond the log."""
    worker = await make_worker(redis_server.url, "w1")
    (job,) = await take_jobs(link, keys, worker, 1)
    await worker.step(job, 3)
    job.tokens[0] += [8, 9]
    stream = writing.writer.open(job.log, job.tokens[0], 3)
    assert stream is not None
    await writing.writer.settled()
    assert writing.num_written == 0  # never added
    writing.send([stream], 10)
    await writing.writer.settled()
    stream.close()
    stream.close()
    assert (stream.num_logged, job.log.writable) == (6, True)
    assert (await logged(link, keys, job))[1] == job.tokens[0]


@pytest.mark.parametrize("form", Form)
async def test_only_an_idle_log_of_msgpack_gets_a_stream(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing, form: Form
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    (job,) = await take_jobs(link, keys, worker, 1, form=form)
    assert (writing.writer.open(job.log, [], 0) is not None) == (form is Form.MSGPACK)
    assert writing.writer.open(job.log, [], 0) is None or form is not Form.MSGPACK


async def test_a_stream_closed_during_a_write_returns_its_log_afterwards(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 2)
    closed, open_ = (writing.open(job) for job in jobs)
    writing.send([closed, open_], 1)
    writing.send([closed, open_], 2)
    closed.close()
    assert (closed.num_logged, jobs[0].log.busy) == (0, True)
    assert writing.writer.add([closed, open_], [3, 3]) == [(closed, 3)]
    jobs[0].tokens[0].append(3)
    await writing.writer.settled()
    assert writing.settled == {jobs[0].log: None}
    assert (closed.num_logged, jobs[0].log.writable) == (1, True)
    assert writing.num_written == 5  # the closed stream's second token is for its owner to write, and was handled
    again = writing.writer.open(jobs[0].log, jobs[0].tokens[0], closed.num_logged)
    assert again is not None
    writing.send([again], 4)
    await writing.writer.settled()
    assert await logged(link, keys, jobs[0]) == [[0, 1, 2], [1, 2, 3, 4]]
    assert await logged(link, keys, jobs[1]) == [[0, 1, 2], [1, 2, 3]]


async def test_tokens_left_by_a_closed_stream_are_handled(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    worker = await make_worker(redis_server.url, "w1")
    (job,) = await take_jobs(link, keys, worker, 1)
    stream = writing.open(job)
    assert writing.writer.add([stream], [1]) == []
    stream.close()
    writing.writer.send()
    assert (writing.num_written, stream.num_logged, job.log.writable) == (1, 0, True)
    await asyncio.wait([asyncio.ensure_future(writing.writer.settled())])


async def test_each_stream_fares_on_its_own(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    """One is fenced, one is gone, one of these was closed meanwhile, and other replies come before and after."""
    worker = await make_worker(redis_server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 6)
    for job in (jobs[1], jobs[4]):
        await fence(link, keys, job)
    await link.call("DEL", keys.reply(jobs[3].request.id))
    streams = [writing.open(job) for job in jobs]
    before = asyncio.create_task(worker.link.call("ECHO", "before"))
    await asyncio.sleep(0)
    writing.send(streams, 1)
    writing.send(streams, 2)
    streams[4].close()
    behind = asyncio.create_task(worker.link.call("ECHO", "behind"))
    await writing.writer.settled()
    assert [await before, await behind] == [b"before", b"behind"]
    assert {log: type(failure) for log, failure in writing.settled.items()} == {
        jobs[1].log: Fenced,
        jobs[3].log: Fenced,
        jobs[4].log: Fenced,
    }
    assert [stream.writer is None for stream in streams] == [False, True, False, True, True, False]
    assert writing.num_written == 12
    alive = [0, 2, 5]
    writing.send([streams[index] for index in alive], 3)
    await writing.writer.settled()
    for index in alive:
        assert (await logged(link, keys, jobs[index]))[1] == [1, 2, 3]
    events = [(job.log, Output((Run(0, 2, (9,)),))) for job in jobs]
    kinds = [type(result) for result in await append_many(events)]
    assert kinds == [LogBusy, Fenced, LogBusy, Fenced, Fenced, LogBusy]


async def test_tokens_on_a_dead_link_stay_unknown(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, open_link: OpenLink, writing: Writing
) -> None:
    server = own_redis()
    link = await open_link(server.url)
    worker = await make_worker(server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 4)
    in_flight, closed, waiting, idle = streams = [writing.open(job) for job in jobs]
    server.freeze()
    writing.send([in_flight, closed], 1)
    writing.send([in_flight, waiting], 2)
    closed.close()
    await worker.link.close()
    server.thaw()
    await writing.writer.settled()
    assert writing.num_written == 4
    assert writing.settled == {}
    assert [stream.writer is None for stream in streams] == [True, True, True, False]
    writing.send([idle], 3)
    assert (idle.writer, writing.num_written) == (None, 5)
    assert not any(job.log.writable for job in jobs)
    assert writing.writer.add(streams, [4] * 4) == [(stream, 4) for stream in streams]
    results = await append_many([(job.log, Output((Run(0, 1, (9,)),))) for job in jobs])
    assert [type(result) for result in results] == [LinkLost] * 4
    assert writing.writer.open(jobs[0].log, [], 0) is None


async def test_tokens_for_a_dead_link_are_handled_although_a_new_link_exists(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, writing: Writing
) -> None:
    """One of a cluster's links breaks, and before its router has noticed, a stream is opened over a new one."""
    one, other = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2")
    (first,), (second,) = await take_jobs(link, keys, one, 1), await take_jobs(link, keys, other, 1)
    stream = writing.open(first)
    await one.link.close()
    writing.open(second).close()
    assert writing.writer.add([stream], [1]) == []
    writing.writer.forget()
    assert (writing.num_written, stream.writer) == (1, None)
