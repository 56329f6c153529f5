"""Checks beside the reading of replies: one that fails stops no other."""

import asyncio

import pytest

from orcastream.broker.connection import Connection
from orcastream.broker.errors import UnknownRequest
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.queue import RequestQueue
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader
from tests.broker.scripted import enqueue, make_request
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer


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
