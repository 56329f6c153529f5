"""Checks beside the reading of replies: one that fails stops no other, and none outlives its connection."""

import asyncio
import logging
from collections.abc import Iterable

import pytest

from orcastream.broker.connection import Connection
from orcastream.broker.errors import UnknownRequest
from orcastream.broker.followed import FollowedLog
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.loss_checks import LossChecks
from orcastream.broker.queue import RequestQueue
from orcastream.broker.server_reading import ServerReading
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Terminal, Usage, encode_event
from orcastream.schemas.keys import Keys
from tests.broker.conftest import Begin, MakeReader, MakeWorker
from tests.broker.followers import blocked
from tests.broker.following import Seen, expected, follow, follow_until, tokens_seen
from tests.broker.scripted import enqueue, make_request
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Checks hang, on a command that the server does not answer; set once one does."""
    hangs = asyncio.Event()

    async def check(_: LossCheck, helper: Connection, watch: Watch) -> Verdict:
        hangs.set()
        await helper.call("BLPOP", "nothing", 0)
        return Verdict.PRESENT

    monkeypatch.setattr(LossCheck, "check", check)
    return hangs


async def test_a_request_that_cannot_be_put_back_now_does_not_stop_the_checks_of_others(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader
) -> None:
    """Redis has lost it, and has no memory for it."""
    request = make_request()
    accepted = await enqueue(link, keys, request)
    await link.call("XDEL", keys.requests("normal"), accepted.entry.entry_id)
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        reader.subscribe(Watch(request.id, "default", accepted.entry, request))
        unknown = reader.subscribe(Watch("unknown", "default"))
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(UnknownRequest, match="nothing is known"):
                await anext(unknown)
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    async with asyncio.timeout(PATIENCE_S):
        while not await RequestQueue(link, keys).depth():
            pass


async def test_checks_continue_after_one_that_failed_unexpectedly(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_reader: MakeReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A defect fails neither the reply that it concerns nor the checks after it."""
    check, fails = LossCheck.check, iter([True])

    async def fail_once(self: LossCheck, helper: Connection, watch: Watch) -> Verdict:
        if next(fails, False):
            raise RuntimeError("a defect")
        return await check(self, helper, watch)

    monkeypatch.setattr(LossCheck, "check", fail_once)
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    request = make_request()
    accepted = await enqueue(link, keys, request)
    await link.call("XDEL", keys.requests("normal"), accepted.entry.entry_id)
    reader.subscribe(Watch(request.id, "default", accepted.entry, request))
    async with asyncio.timeout(PATIENCE_S):
        while not await RequestQueue(link, keys).depth():
            pass
    assert "a defect" in caplog.text


async def test_closing_ends_the_checks_under_way(
    redis_server: RedisServer,
    keys: Keys,
    make_reader: MakeReader,
    hanging: asyncio.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In silence: nobody is to look for a reason in the log."""
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    reader.subscribe(Watch("r1", "default"))
    async with asyncio.timeout(PATIENCE_S):
        await hanging.wait()
        await reader.close()
    assert caplog.record_tuples == []


async def test_when_the_reading_connection_breaks_the_checks_begin_anew(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    hanging: asyncio.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those under way are ended with it, although theirs lives: no check is about a connection that was closed."""
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    await enqueue(link, keys, make_request())
    following = asyncio.create_task(follow(reader.subscribe(Watch("r1", "default"))))
    async with asyncio.timeout(PATIENCE_S):
        await hanging.wait()
        hanging.clear()
        for line in (await link.call("CLIENT", "LIST")).splitlines():
            if b"name=gateway-replies" in line:
                await link.call("CLIENT", "KILL", "ID", line.split()[0].removeprefix(b"id="))
        await hanging.wait()
        worker = await make_worker(redis_server.url, "w1")
        job = await worker.take()
        await worker.end(job, [worker.next_run(job)])
        assert (await following).tokens[0] == expected(1)
    assert [name for name, level, _ in caplog.record_tuples if level >= logging.WARNING] == ["orcastream.broker.reader"]


async def test_what_a_check_finds_is_read_without_waiting_for_the_blocked_read(
    redis_server: RedisServer, link: Link, begin: Begin, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is that of a server that knew less, where the request has ended since."""
    worker, job = await begin(1)
    less = await link.call("DUMP", job.log.key)
    reader = await make_reader(redis_server.url, loss_check_s=0.2)
    for _ in range(2):
        await worker.step(job)
    subscription = reader.subscribe(Watch(job.request.id, "default"))
    begin_checks = LossChecks.begin

    def begin_and_block(checks: LossChecks, helper: Connection, logs: Iterable[FollowedLog]) -> None:
        begin_checks(checks, helper, logs)
        if checks._task is not None and not checks._task.done() and isinstance(reader._reading, ServerReading):
            reader._reading._block_ms = 60_000  # the link would break first

    async with asyncio.timeout(PATIENCE_S):
        seen = await follow_until(subscription, Seen(), tokens_seen(3))
        reading = await blocked(link)
        ended = Terminal((Ending(None, 1),), Usage(1, 1), error=ErrorCode.CANCELLED, message="cancelled")
        await link.call("RESTORE", job.log.key, 0, less, "REPLACE")
        await link.call("XADD", job.log.key, f"{job.log.epoch}-2", *encode_event(ended, job.request.form))
        monkeypatch.setattr(LossChecks, "begin", begin_and_block)
        await follow_until(subscription, seen, lambda _: False)
    assert [terminal.error for terminal in seen.terminals] == [ErrorCode.CANCELLED]
    assert reading in [line.split()[0] for line in (await link.call("CLIENT", "LIST")).splitlines()]
