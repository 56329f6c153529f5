"""Keys that a foreign process wrote: the request that they belong to ends, and nothing else suffers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from orcastream.broker.dead_letter import bury
from orcastream.broker.ending import Ender
from orcastream.broker.entry import Mark
from orcastream.broker.errors import UnknownRequest, Unusable, Unwritable
from orcastream.broker.followed import FollowedLog
from orcastream.broker.letters import newest_letters
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.origin import find_origin
from orcastream.broker.queue import RequestQueue
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker, OpenLink
from tests.broker.following import follow
from tests.broker.scripted import RETENTION_MS, enqueue, make_request
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

LAST_ID = f"{2**64 - 1}-0"
Spoil = Callable[[Link, str], Awaitable[object]]


async def no_stream(link: Link, key: str) -> None:
    await link.call("SET", key, "junk")


async def no_epoch_left(link: Link, key: str) -> None:
    await link.call("XADD", key, LAST_ID, "a", "b")


async def no_epoch_left_and_no_entry(link: Link, key: str) -> None:
    await link.call("XADD", key, LAST_ID, "a", "b")
    await link.call("XDEL", key, LAST_ID)


spoils = pytest.mark.parametrize("spoil", [no_stream, no_epoch_left, no_epoch_left_and_no_entry])


@spoils
async def test_attaching_reports_that_the_key_is_unusable(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, spoil: Spoil
) -> None:
    await enqueue(link, keys, make_request())
    await spoil(link, keys.reply("r1"))
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    with pytest.raises(Unusable):
        await worker.attach(claimed)


@spoils
@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "waiting"])
async def test_a_sweep_sets_the_request_aside_and_continues(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, spoil: Spoil, claimed: bool
) -> None:
    """It is ahead of others of its class, and of less urgent classes."""
    now_ms = await link.server_time_ms()
    for name, urgency in (("bad", "realtime"), ("good", "realtime"), ("less", "low")):
        await enqueue(link, keys, make_request(name, priority_class=urgency, deadline_ms=now_ms))
    await spoil(link, keys.reply("bad"))
    if claimed:
        await (await make_worker(redis_server.url, "w1")).claimer.new(3)
    told: list[None] = []
    sweeper = Sweeper(
        link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=-1, on_set_aside=lambda: told.append(None)
    )
    swept = await sweeper.step()
    assert len(told) == 1
    assert [ref.priority_class for ref in swept.expired] == ["realtime", "low"]
    assert [letter.request_id async for letter in newest_letters(link, keys)] == ["bad"]
    assert await RequestQueue(link, keys).depth() == 0


@spoils
async def test_an_entry_that_breaks_the_contract_becomes_only_a_dead_letter(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, spoil: Spoil
) -> None:
    await RequestQueue(link, keys).ensure_groups()
    await link.call("XADD", keys.requests("normal"), "*", "id", "bad", "v", "99")
    await spoil(link, keys.reply("bad"))
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    error = InvalidRequest("v", "99", "1", ErrorCode.UNSUPPORTED_VERSION)
    told: list[None] = []
    ender = Ender(keys, "w1", retention_ms=RETENTION_MS, on_set_aside=lambda: told.append(None))
    assert not await ender.reject(worker.link, claimed.ref, claimed.fields, error)
    assert len(told) == 1
    await ender.set_aside(link, claimed.ref, error.code, "again")
    assert len(told) == 1, "another process was first"
    assert [letter.reason async for letter in newest_letters(link, keys)] == ["unsupported_version"]
    assert await RequestQueue(link, keys).depth() == 0


async def test_a_sweep_ends_the_others_even_if_no_dead_letter_can_be_written(link: Link, keys: Keys) -> None:
    now_ms = await link.server_time_ms()
    for name in ("bad", "good"):
        await enqueue(link, keys, make_request(name, deadline_ms=now_ms))
    await no_stream(link, keys.reply("bad"))
    await no_stream(link, keys.dead)
    sweeper = Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=-1)
    with pytest.raises(Unwritable):
        await sweeper.step()
    assert await RequestQueue(link, keys).depth() == 1
    await link.call("DEL", keys.dead)
    await sweeper.step()
    assert await RequestQueue(link, keys).depth() == 0


async def test_an_unforeseen_error_about_one_log_does_not_end_the_sweep(
    link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Ender._read

    async def fail_for_one(ender: Ender, link: Link, request_id: str) -> Sequence[Any]:
        if request_id == "bad":
            raise ZeroDivisionError
        return await read(ender, link, request_id)

    monkeypatch.setattr(Ender, "_read", fail_for_one)
    now_ms = await link.server_time_ms()
    for request_id in ("bad", "good"):
        await enqueue(link, keys, make_request(request_id, deadline_ms=now_ms))
    assert len((await Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=-1).step()).expired) == 1
    assert [letter.request_id async for letter in newest_letters(link, keys)] == ["bad"]
    assert await RequestQueue(link, keys).depth() == 0


async def test_waiting_entries_are_set_aside_only_on_request(link: Link, keys: Keys) -> None:
    entry = (await enqueue(link, keys, make_request())).entry
    assert not await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="")
    assert await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="", waiting=True)
    assert not await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="", waiting=True)
    assert [letter.attempts async for letter in newest_letters(link, keys)] == [0]


async def test_an_accepted_request_is_not_enqueued_again_in_vain(link: Link, keys: Keys) -> None:
    """A worker set it aside; the gateway that accepted it finds its entry gone, and no terminal."""
    request = make_request()
    entry = (await enqueue(link, keys, request)).entry
    await no_epoch_left(link, keys.reply(request.id))
    await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="", waiting=True)
    with pytest.raises(Unusable):
        await LossCheck(keys, "gateway", retention_ms=RETENTION_MS).check(
            link, Watch(request.id, "default", entry, request)
        )
    assert await RequestQueue(link, keys).depth() == 0


async def test_the_reader_is_told(redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader) -> None:
    request = make_request()
    entry = (await enqueue(link, keys, request)).entry
    await no_epoch_left(link, keys.reply(request.id))
    reader = await make_reader(redis_server.url, loss_check_s=0.05)
    subscription = reader.subscribe(Watch(request.id, "default", entry, request))
    await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="", waiting=True)
    with pytest.raises(UnknownRequest, match="cannot be used"):
        await anext(subscription)


async def test_a_log_that_cannot_be_folded_ends_only_its_own_stream(
    redis_server: RedisServer,
    link: Link,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the folding code itself fails."""
    take = FollowedLog.take

    def fail_for_one(followed: FollowedLog, entry: Any) -> bool:
        if followed.watch.request_id == "bad":
            raise ZeroDivisionError
        return take(followed, entry)

    monkeypatch.setattr(FollowedLog, "take", fail_for_one)
    worker, reader = await make_worker(redis_server.url, "w1"), await make_reader(redis_server.url)
    replies = {}
    for request_id in ("bad", "good"):
        await enqueue(link, keys, make_request(request_id))
        replies[request_id] = reader.subscribe(Watch(request_id, "default"))
        job = await worker.take()
        await worker.end(job, [worker.next_run(job)])
    with pytest.raises(UnknownRequest, match="cannot be read"):
        await anext(replies["bad"])
    assert (await follow(replies["good"])).tokens[0] == [0]


@pytest.mark.parametrize("junk", ["1700-0", "urgent 1-1", "normal x", ""])
async def test_an_unreadable_seen_key_counts_as_missing(link: Link, keys: Keys, junk: str) -> None:
    request = make_request()
    await link.call("SET", keys.seen(request.id), junk)
    assert await find_origin(link, keys, request.id, int(time.time() * 1000)) is None
    assert (
        await LossCheck(keys, "g", retention_ms=RETENTION_MS).check(link, Watch(request.id, "default"))
        is Verdict.UNKNOWN
    )
    accepted = await enqueue(link, keys, request)
    assert not accepted.duplicate
    assert await RequestQueue(link, keys).find(request.id) == Mark(accepted.entry)


async def test_keys_of_the_wrong_type_count_as_missing(link: Link, keys: Keys) -> None:
    request = make_request()
    await link.call("LPUSH", keys.seen(request.id), "junk")
    await link.call("SET", keys.reply(request.id), "junk")
    assert await find_origin(link, keys, request.id, int(time.time() * 1000)) is None
    assert await RequestQueue(link, keys).find(request.id) is None
    assert not (await enqueue(link, keys, request)).duplicate


async def test_a_junk_seen_key_does_not_stop_other_checks(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader
) -> None:
    """Junk first, then a request that Redis lost, which its gateway enqueues again."""
    reader = await make_reader(redis_server.url, loss_check_s=0.05)
    await link.call("SET", keys.seen("junk"), "1700-0")
    await link.call("XADD", keys.reply("junk"), "5-0", "a", "b")
    junk, request = reader.subscribe(Watch("junk", "default")), make_request("lost")
    entry = (await enqueue(link, keys, request)).entry
    lost = reader.subscribe(Watch("lost", "default", entry, request))
    await link.call_many([("XDEL", keys.requests("normal"), entry.entry_id)])
    async with asyncio.timeout(PATIENCE_S):
        while await RequestQueue(link, keys).depth() == 0:  # noqa: ASYNC110 (the state is another process's)
            await asyncio.sleep(0.005)
    for subscription in (junk, lost):
        subscription.close()


async def test_wrong_inner_types_silence_no_reader(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    """Readers and workers ignore entries whose values have types other than the contract's."""
    reader, worker = await make_reader(redis_server.url), await make_worker(redis_server.url, "w1")
    for index, (kind, payload) in enumerate(JUNK):
        await link.call("XADD", keys.reply("r1"), f"5-{index}", "type", kind, "payload", payload)
    await enqueue(link, keys, make_request())
    subscription = reader.subscribe(Watch("r1", "default"))
    job = await worker.take()
    await worker.step(job)
    await worker.end(job)
    seen = await follow(subscription)
    assert (seen.tokens[0], seen.workers) == ([0], ["w1"])


STARTED = '{"worker":"w","model":"m","tenant":"default","class":"normal","entry":%s,"seed":%s,"prompt_tokens":1,"n":%s}'
JUNK = [
    ("started", STARTED % ('"normal 1-1"', "1", '"1"')),
    ("started", STARTED % ("5", "1", "1")),
    ("started", STARTED % ('"normal 1-1"', str(2**63), "1")),
    ("started", STARTED.replace('"w"', '"\\ud800"') % ('"normal 1-1"', "1", "1")),
    ("tokens", '{"output":[{"choice":0,"position":"0","tokens":[1]}]}'),
    ("tokens", '{"output":[{"choice":0,"position":0,"tokens":[-1]}]}'),
    ("tokens", '{"output":[{"choice":0,"position":0,"tokens":["a"]}]}'),
    ("tokens", '{"output":[{"choice":"0","position":0,"tokens":[1]}]}'),
    ("finished", '{"output":[],"choices":[{"tokens":"0"}],"usage":{"prompt_tokens":1,"completion_tokens":0}}'),
    ("finished", '{"output":[],"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0},"timings":{}}'),
]
"""Entries of a reply log, each with one value that is of another type, or another range, than it may be."""


async def test_a_class_full_of_unusable_entries_is_swept_to_its_end(link: Link, keys: Keys) -> None:
    """There are more than one look covers: the sweep reaches them all."""
    now_ms = await link.server_time_ms()
    for index in range(20):
        await enqueue(link, keys, make_request(f"r{index}", deadline_ms=now_ms))
        await no_stream(link, keys.reply(f"r{index}"))
    sweeper = Sweeper(link, keys, "gateway", retention_ms=RETENTION_MS, margin_ms=-1, chunk=8)
    for _ in range(4):
        await sweeper.step()
    assert await RequestQueue(link, keys).depth() == 0


async def test_a_reader_that_may_not_ask_what_a_key_holds_gives_no_reply_up(
    own_redis: Callable[..., RedisServer],
    open_link: OpenLink,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
) -> None:
    """It looks for the key that is no stream again once it may."""
    server = own_redis()
    link = await open_link(server.url)
    await enqueue(link, keys, make_request())
    worker = await make_worker(server.url, "w1")
    job = await worker.take()
    await no_stream(link, keys.reply("junk"))
    await link.call("ACL", "SETUSER", "default", "-type")
    reader = await make_reader(server.url)
    junk, good = [reader.subscribe(Watch(request_id, "default")) for request_id in ("junk", "r1")]
    async with asyncio.timeout(PATIENCE_S):
        while not await link.call("ACL", "LOG"):
            pass
        await link.call("ACL", "SETUSER", "default", "+type")
        with pytest.raises(UnknownRequest, match="not a stream"):
            await anext(junk)
        await worker.end(job, [worker.next_run(job)])
        assert (await follow(good)).tokens[0] == [0]
