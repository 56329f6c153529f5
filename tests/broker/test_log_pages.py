"""Long reply logs on a server that closes connections on which much waits (`client-output-buffer-limit`)."""

import asyncio
from collections.abc import Callable

import pytest

from orcastream.broker.attach import Attached
from orcastream.broker.ending import Ender
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output, encode_event
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.following import expected, follow
from tests.broker.scripted import RETENTION_MS, Job, ScriptedWorker, take_jobs
from tests.pauses import Pauses
from tests.redis_server import RedisServer

LONG = 4000
"""Events of a log that is more than the server lets wait."""
FAIRLY_LONG = 600
"""Events of a log of which eight are."""


@pytest.fixture
def strict_server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis(options=("--client-output-buffer-limit", "normal", "300kb", "0", "0"))


async def jobs_of(worker: ScriptedWorker, keys: Keys, count: int, num_events: int) -> list[Job]:
    """Let the worker claim requests and publish so many events of one token for each."""
    jobs = await take_jobs(worker.link, keys, worker, count, max_tokens=num_events)
    for job in jobs:
        key, epoch = keys.reply(job.request.id), job.log.epoch
        events = [Output((worker.next_run(job),)) for _ in range(num_events)]
        written = [encode_event(event, job.request.form) for event in events]
        ids = [f"{epoch}-{index}".encode() for index in range(1, num_events + 1)]
        commands = [("XADD", key, name, *event) for name, event in zip(ids, written, strict=True)]
        assert await worker.link.call_many(commands) == ids
        job.log.lend()
        job.log.take_back(num_events + 1)
    return jobs


async def test_a_long_log_is_continued(strict_server: RedisServer, make_worker: MakeWorker, keys: Keys) -> None:
    worker = await make_worker(strict_server.url, "w1")
    [job] = await jobs_of(worker, keys, 1, LONG)
    again = await worker.attach(job.claimed)
    assert isinstance(again, Attached)
    assert list(again.fold.tokens[0]) == expected(LONG)


async def test_a_long_log_gets_its_end(strict_server: RedisServer, make_worker: MakeWorker, keys: Keys) -> None:
    worker = await make_worker(strict_server.url, "w1")
    [job] = await jobs_of(worker, keys, 1, LONG)
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS, grace_s=60)
    ender = Ender(keys, "gateway", retention_ms=RETENTION_MS)
    terminal = await ender.end(worker.link, job.request.id, ref=job.ref, code=ErrorCode.EXPIRED, message="late")
    assert terminal is not None
    assert [choice.tokens for choice in terminal.endings] == [LONG]
    assert await check.check(worker.link, Watch(job.request.id, "default", job.ref)) is Verdict.ENDED


async def test_many_logs_are_read_although_their_readers_are_far_behind(
    strict_server: RedisServer, make_worker: MakeWorker, make_reader: MakeReader, keys: Keys
) -> None:
    worker = await make_worker(strict_server.url, "w1")
    jobs = await jobs_of(worker, keys, 8, FAIRLY_LONG)
    for job in jobs:
        await worker.end(job)
    reader = await make_reader(strict_server.url)
    subscriptions = [reader.subscribe(Watch(job.request.id, "default")) for job in jobs]
    for seen in await asyncio.gather(*map(follow, subscriptions)):
        assert seen.tokens[0] == expected(FAIRLY_LONG)


async def test_pauses_grow_while_a_page_is_more_than_the_server_lets_wait(
    strict_server: RedisServer,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = await make_worker(strict_server.url, "w1")
    [job] = await jobs_of(worker, keys, 1, FAIRLY_LONG)
    pauses = Pauses(monkeypatch, "orcastream.broker.reader")
    reader = await make_reader(strict_server.url)
    with strict_server.client() as redis:
        redis.config_set("client-output-buffer-limit", "normal 5kb 0 0")
    reader.subscribe(Watch(job.request.id, "default"))
    await pauses.reach(0.5)
