"""The writing side: one write for many logs, and what a failed write means."""

import asyncio
from typing import Any

import pytest

from orcastream.broker.errors import BrokerError, Fenced, LinkLost, LogBusy
from orcastream.broker.link import Link
from orcastream.broker.reply_log import append_many
from orcastream.schemas.events import Output
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import Job, ScriptedWorker, fence, take_jobs
from tests.redis_server import RedisServer


def _events(worker: ScriptedWorker, jobs: list[Job]) -> list[Any]:
    return [(job.log, Output((worker.next_run(job),))) for job in jobs]


def _kinds(results: list[BrokerError | None]) -> list[type]:
    return [type(result) for result in results]


async def test_each_log_fares_on_its_own(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """One log is fenced, one is gone, one is on a dead link, one is busy; the others are written."""
    alive, dead = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2")
    jobs = [*await take_jobs(link, keys, alive, 4), *await take_jobs(link, keys, dead, 1)]
    fenced, gone = jobs[1], jobs[2]
    await fence(link, keys, fenced)
    await link.call("DEL", keys.reply(gone.request.id))
    assert isinstance(dead.link, Link)
    await link.call("CLIENT", "KILL", "ID", dead.link.client_id)
    await dead.link.wait_lost()
    busy = asyncio.create_task(alive.step(jobs[3]))
    await asyncio.sleep(0)
    assert not jobs[3].log.writable
    results = await append_many(_events(alive, jobs))
    assert _kinds(results) == [type(None), Fenced, Fenced, LogBusy, LinkLost]
    await busy
    assert [job.log.writable for job in jobs] == [True, False, False, True, False]
    assert _kinds(await append_many(_events(alive, jobs))) == [type(None), Fenced, Fenced, type(None), LinkLost]
    assert await append_many([]) == []


async def test_a_cancelled_write_ends_the_epoch_of_every_log_in_it(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Over two links: the logs may or may not contain what was sent, so nothing is sent after it."""
    workers = [await make_worker(redis_server.url, f"w{i}") for i in range(2)]
    jobs = [job for worker in workers for job in await take_jobs(link, keys, worker, 2)]
    writing = asyncio.create_task(append_many(_events(workers[0], jobs)))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert _kinds(await append_many(_events(workers[0], jobs))) == [LinkLost] * 4
    assert all(worker.link.alive for worker in workers)


async def test_a_link_that_dies_during_the_write(
    own_redis: Any, keys: Keys, make_worker: MakeWorker, open_link: OpenLink
) -> None:
    """Redis hangs: every log in the write is void, and reports it once the reply is overdue."""
    server = own_redis()
    link = await open_link(server.url)
    worker = await make_worker(server.url, "w1")
    jobs = await take_jobs(link, keys, worker, 3)
    server.freeze()
    writing = asyncio.create_task(append_many(_events(worker, jobs)))
    await asyncio.sleep(0)
    await worker.link.close()
    assert _kinds(await writing) == [LinkLost] * 3
    server.thaw()
    assert not any(job.log.writable for job in jobs)
