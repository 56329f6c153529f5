"""The terms of a request: bounds by class, expected wait, tenant limits; and accounts that stay correct."""

import asyncio
from typing import Any

import pytest

from orcastream.broker.cancelling import cancel_entry
from orcastream.broker.cleanup import acknowledge_call
from orcastream.broker.ending import Ender
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import NotAdmitted, Refusal
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.broker.sweep import Sweeper
from orcastream.broker.terms import Terms
from orcastream.broker.throughput import Throughput, ThroughputReports
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import CLASSES, GROUP, Keys
from orcastream.schemas.request import GenerationRequest
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import RETENTION_MS, bare_fields, enqueue, make_request
from tests.redis_server import RedisServer

TOKENS = 3 + 8
"""What a request of `make_request` declares."""


async def refusal(link: Link, keys: Keys, request: GenerationRequest, **terms: Any) -> NotAdmitted:
    """Return why these terms refuse the request; check that no trace of it remains."""
    before = await books(link, keys), await RequestQueue(link, keys).depths()
    with pytest.raises(NotAdmitted) as caught:
        await enqueue(link, keys, request, terms=Terms(**terms))
    assert (await books(link, keys), await RequestQueue(link, keys).depths()) == before
    assert await RequestQueue(link, keys).find(request.id) is None
    return caught.value


async def books(link: Link, keys: Keys) -> dict[str, str]:
    """Return all counts, and all entries that they are counted from."""
    flat = [part.decode() for part in await link.call("HGETALL", keys.work)]
    return {name: value for name, value in zip(flat[::2], flat[1::2], strict=True) if value != "0"}


async def serve(link: Link, keys: Keys, tokens_per_s: float, *, worker: str = "w", **figures: float) -> None:
    """Write a worker's report."""
    report = Throughput(tokens_per_s, figures.get("token_ms", 0), int(figures.get("done", 0)), 4)
    await ThroughputReports(link, keys, worker).tell(report, ttl_ms=60_000)


async def test_a_class_is_bounded_by_requests(link: Link, keys: Keys) -> None:
    for index in range(3):
        assert (await enqueue(link, keys, make_request(f"r{index}"), terms=Terms(max_requests=3))).depth == index + 1
    error = await refusal(link, keys, make_request("late"), max_requests=3)
    assert (error.reason, error.found, error.allowed) == (Refusal.REQUESTS, 3, 3)
    other = make_request("other", priority_class="low")
    assert not (await enqueue(link, keys, other, terms=Terms(max_requests=3))).duplicate
    assert (await enqueue(link, keys, make_request("r0"), terms=Terms(max_requests=3))).duplicate, "it was accepted"
    assert not (await enqueue(link, keys, make_request("late"), terms=None)).duplicate


async def test_a_class_is_bounded_by_tokens(link: Link, keys: Keys) -> None:
    terms = Terms(max_tokens=2 * TOKENS)
    await enqueue(link, keys, make_request("r0"), terms=terms)
    await enqueue(link, keys, make_request("r1"), terms=terms)
    error = await refusal(link, keys, make_request("late"), max_tokens=2 * TOKENS)
    assert (error.reason, error.found, error.allowed) == (Refusal.TOKENS, 3 * TOKENS, 2 * TOKENS)
    await serve(link, keys, tokens_per_s=TOKENS)
    assert (await refusal(link, keys, make_request("late"), max_tokens=2 * TOKENS)).retry_after_ms == 1000
    large = make_request("large", priority_class="low", max_tokens=1000)
    assert not (await enqueue(link, keys, large, terms=terms)).duplicate, "an empty class takes any request"


async def test_candidates_and_an_unstated_length_count(link: Link, keys: Keys) -> None:
    await enqueue(link, keys, make_request("three", n=2, best_of=3))
    await enqueue(link, keys, make_request("unsaid", max_tokens=None))
    assert (await books(link, keys))["tokens normal"] == str(3 + 3 * 8 + 3 + 512)


async def test_the_expected_wait_is_the_work_ahead_divided_by_the_throughput(link: Link, keys: Keys) -> None:
    terms = Terms(max_wait_ms=2000)
    for index in range(3):
        await enqueue(link, keys, make_request(f"r{index}"), terms=terms)
    assert not (await enqueue(link, keys, make_request("r3"), terms=terms)).duplicate, "nothing has been measured yet"
    await serve(link, keys, tokens_per_s=TOKENS)
    error = await refusal(link, keys, make_request("late"), max_wait_ms=2000)
    assert (error.reason, error.found, error.allowed, error.retry_after_ms) == (Refusal.WAIT, 4000, 2000, 2000)
    await serve(link, keys, tokens_per_s=TOKENS, done=2 * TOKENS)
    assert not (await enqueue(link, keys, make_request("r4"), terms=terms)).duplicate
    await refusal(link, keys, make_request("late"), max_wait_ms=2000)
    await serve(link, keys, tokens_per_s=TOKENS, worker="w2")
    assert not (await enqueue(link, keys, make_request("r5"), terms=terms)).duplicate, "two serve twice as much"


async def test_a_request_that_would_be_late_is_refused(link: Link, keys: Keys) -> None:
    """The request's own time counts too, and a nearer deadline tolerates less."""
    now_ms = await link.server_time_ms()
    await serve(link, keys, tokens_per_s=TOKENS, token_ms=500)
    for index in range(4):
        await enqueue(link, keys, make_request(f"r{index}"))
    terms: dict[str, Any] = {"max_wait_share": 0.5}
    assert (await refusal(link, keys, make_request("late", deadline_ms=now_ms + 7_000), **terms)).found == 4000
    own = make_request("own", deadline_ms=now_ms + 9_900)
    assert (await refusal(link, keys, own, **terms)).allowed <= 9_900 * 0.8 - 8 * 500
    assert not (
        await enqueue(link, keys, make_request("r4", deadline_ms=now_ms + 60_000), terms=Terms(**terms))
    ).duplicate


async def test_less_urgent_work_counts_by_its_weight_and_more_urgent_work_in_full(link: Link, keys: Keys) -> None:
    await serve(link, keys, tokens_per_s=TOKENS)
    for index in range(32):
        await enqueue(link, keys, make_request(f"r{index}", priority_class="normal"))
    waits = {}
    for name in CLASSES:
        waits[name] = (await refusal(link, keys, make_request("late", priority_class=name), max_wait_ms=1)).found
    assert waits == {"realtime": 2000, "high": 8000, "normal": 32000, "low": 32000}


async def test_an_empty_queue_refuses_nothing_for_its_wait(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    await serve(link, keys, tokens_per_s=1)
    await enqueue(link, keys, make_request("runs"))
    await refusal(link, keys, make_request("late"), max_wait_ms=1)
    await (await make_worker(redis_server.url, "w1")).take()
    assert not (await enqueue(link, keys, make_request("next"), terms=Terms(max_wait_ms=1))).duplicate
    await refusal(link, keys, make_request("late"), max_wait_ms=1)


async def test_reports_expire_and_junk_counts_as_nothing(link: Link, keys: Keys) -> None:
    await enqueue(link, keys, make_request("waits"))
    await ThroughputReports(link, keys, "dead").tell(Throughput(1, 1, 0, 4), ttl_ms=1)
    await asyncio.sleep(0.01)
    for name, value in {"a": "junk", "b": "99999999999999 [1]", "c": "99999999999999 {", "d": "9 {}"}.items():
        await link.call("HSET", keys.throughput, name, value)
    assert not (await enqueue(link, keys, make_request("next"), terms=Terms(max_wait_ms=0))).duplicate
    await serve(link, keys, tokens_per_s=1000)
    assert sorted((await link.call("HGETALL", keys.throughput))[::2]) == [b"b", b"c", b"w"]
    leaving = ThroughputReports(link, keys, "w")
    await leaving.tell(None, ttl_ms=1)
    assert b"w" not in await link.call("HGETALL", keys.throughput)
    await leaving.tell(Throughput(1, 1, 0, 4), ttl_ms=60_000)
    await leaving.tell(None, ttl_ms=1)
    assert b"w" not in await link.call("HGETALL", keys.throughput)


async def test_a_plain_xadd_counts_as_the_mean(link: Link, keys: Keys) -> None:
    await serve(link, keys, tokens_per_s=TOKENS)
    await enqueue(link, keys, make_request("known"))
    for index in range(3):
        await link.call("XADD", keys.requests("normal"), "*", *bare_fields(make_request(f"bare{index}")))
    assert (await refusal(link, keys, make_request("late"), max_wait_ms=1)).found == 4000


async def test_a_rate_holds_across_all_gateways(redis_server: RedisServer, keys: Keys, open_link: OpenLink) -> None:
    links = [await open_link(redis_server.url) for _ in range(2)]
    terms = Terms(requests_per_minute=4)
    for index in range(4):
        await enqueue(links[index % 2], keys, make_request(f"r{index}", tenant="a"), terms=terms)
    for link in links:
        error = await refusal(link, keys, make_request("late", tenant="a"), requests_per_minute=4)
        assert (error.reason, error.allowed) == (Refusal.RATE, 4)
        assert 10_000 < error.retry_after_ms <= 15_000, "the bucket fills evenly"
    assert (await enqueue(links[0], keys, make_request("r0", tenant="a"), terms=terms)).duplicate, "it was accepted"
    assert not (await enqueue(links[0], keys, make_request("other", tenant="b"), terms=terms)).duplicate
    ttl_ms = await links[0].call("PTTL", keys.rate("a"))
    assert 0 < ttl_ms <= 60_000


async def test_setting_the_servers_clock_back_locks_no_tenant_out(link: Link, keys: Keys) -> None:
    terms = Terms(requests_per_minute=1)
    await enqueue(link, keys, make_request("before", tenant="a"), terms=terms)
    hour_ms = 3_600_000
    full_ms = float(await link.call("GET", keys.rate("a"))) + hour_ms
    await link.call("SET", keys.rate("a"), str(full_ms), "PX", hour_ms)  # the bucket as seen an hour earlier
    assert not (await enqueue(link, keys, make_request("after", tenant="a"), terms=terms)).duplicate
    assert (await refusal(link, keys, make_request("late", tenant="a"), requests_per_minute=1)).retry_after_ms <= 60_000


async def test_a_tenants_concurrency_is_released_at_every_end(
    link: Link, keys: Keys, redis_server: RedisServer, make_worker: MakeWorker
) -> None:
    """Finished, canceled while waiting, expired, dead letter, ended by another worker."""
    limits = {"max_concurrency": 1}

    async def accepted(request_id: str, **changes: Any) -> EntryRef:
        request = make_request(request_id, tenant="a", **changes)
        return (await enqueue(link, keys, request, terms=Terms(**limits))).entry

    async def is_bounded() -> None:
        error = await refusal(link, keys, make_request("late", tenant="a"), **limits)
        assert (error.reason, error.found, error.allowed) == (Refusal.CONCURRENCY, 1, 1)

    async def is_free() -> None:
        assert await books(link, keys) == {}

    ender = Ender(keys, "g", retention_ms=RETENTION_MS)
    await accepted("finished")
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await is_bounded()
    await worker.end(job)
    await is_free()
    waits = make_request("cancelled", tenant="a")
    await cancel_entry(link, keys, ender, waits, await accepted("cancelled"), retention_ms=RETENTION_MS)
    await is_free()
    ref = await accepted("expired", deadline_ms=await link.server_time_ms() - 5000)
    await is_bounded()
    assert (await Sweeper(link, keys, "g", retention_ms=RETENTION_MS).step()).expired == (ref,)
    await is_free()
    ref = await accepted("dead")
    await worker.take()
    await ender.end(link, "dead", ref=ref, code=ErrorCode.DEAD_LETTER, message="x")
    await is_free()
    ref = await accepted("left")
    await worker.take()
    await worker.leases.hand_over([ref])
    await worker.close()
    other = await make_worker(redis_server.url, "w2")
    (claimed,) = await other.claimer.expired(1)
    await is_bounded()
    await other.end(await other.open(claimed))
    await is_free()
    await ender.end(link, "left", ref=ref, code=ErrorCode.LOST, message="again")
    await is_free()


async def test_a_tenant_has_a_share_of_the_queue(link: Link, keys: Keys) -> None:
    """The share spans all classes, so that the tenant fills none of them."""
    terms = Terms(max_requests=4, tenant_requests=2)
    await enqueue(link, keys, make_request("r0", tenant="a"), terms=terms)
    await enqueue(link, keys, make_request("r1", tenant="a", priority_class="high"), terms=terms)
    late = make_request("late", tenant="a", priority_class="low")
    error = await refusal(link, keys, late, max_requests=4, tenant_requests=2)
    assert (error.reason, error.found, error.allowed) == (Refusal.SHARE, 2, 2)
    assert (await enqueue(link, keys, make_request("r0", tenant="a"), terms=terms)).duplicate, "it was accepted"
    assert not (await enqueue(link, keys, make_request("other", tenant="b"), terms=terms)).duplicate


async def test_a_tenant_has_a_share_of_the_queues_tokens(link: Link, keys: Keys) -> None:
    terms = Terms(tenant_tokens=2 * TOKENS)
    await enqueue(link, keys, make_request("large", tenant="b", max_tokens=1000), terms=terms)
    first = await enqueue(link, keys, make_request("r0", tenant="a"), terms=terms)
    await enqueue(link, keys, make_request("r1", tenant="a", priority_class="high"), terms=terms)
    error = await refusal(link, keys, make_request("late", tenant="a"), tenant_tokens=2 * TOKENS)
    assert (error.reason, error.found, error.allowed) == (Refusal.TOKEN_SHARE, 3 * TOKENS, 2 * TOKENS)
    assert (
        await refusal(link, keys, make_request("late", tenant="b"), tenant_tokens=2 * TOKENS)
    ).found == 1003 + TOKENS
    await link.call_many([acknowledge_call(keys, first.entry, "r0")])
    assert not (await enqueue(link, keys, make_request("late", tenant="a"), terms=terms)).duplicate


async def test_a_sweep_removes_a_deleted_entry_from_the_accounts(link: Link, keys: Keys) -> None:
    for index in range(300):
        await enqueue(link, keys, make_request(f"r{index}", tenant="a"))
    stays = await enqueue(link, keys, make_request("stays", tenant="a", priority_class="high"))
    await link.call("DEL", keys.requests("normal"))
    assert (await books(link, keys))["tenant a"] == "301"
    sweeper = Sweeper(link, keys, "g", retention_ms=RETENTION_MS)
    await RequestQueue(link, keys).ensure_groups()
    for _ in range(5):
        await sweeper.step()
    record = {str(stays.entry): f"{TOKENS} a", "tenant a": "1", "tenant-tokens a": str(TOKENS)}
    record |= {"tokens high": str(TOKENS), "requests high": "1"}
    assert await books(link, keys) == record


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests normal": "7", "tenant a": "7", "tokens normal": "-60", "tenant-tokens b": "4"},
        {"requests normal": "junk"},
        {"tokens normal": "1e300", "tokens high": "-9"},
    ],
)
async def test_a_sweep_mends_sums_that_no_record_explains(link: Link, keys: Keys, wrong: dict[str, str]) -> None:
    """Older versions of enqueue.lua wrote records, such as this one of -67 tokens, that count in sums forever."""
    await RequestQueue(link, keys).ensure_groups()
    for index in range(3):
        await enqueue(link, keys, make_request(f"r{index}", tenant="a"))
    right = await books(link, keys)
    unread = await enqueue(link, keys, make_request("unread", tenant="b"))
    await link.call("HSET", keys.work, str(unread.entry), "-67 b", *(part for pair in wrong.items() for part in pair))
    sweeper = Sweeper(link, keys, "g", retention_ms=RETENTION_MS)
    for _ in range(3):
        await sweeper.step()
    assert await books(link, keys) == right
    assert await RequestQueue(link, keys).depth() == 4


async def test_damaged_accounts_stop_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    for key in (keys.work, keys.throughput, keys.rate("default")):
        await link.call("RPUSH", key, "junk")
    terms = Terms(10, 1000, 1000, 0.5, 100, 10, 10, 1000)
    await enqueue(link, keys, make_request(), terms=terms)
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await worker.end(job)
    assert await RequestQueue(link, keys).depth() == 0


async def test_out_of_memory_leaves_no_trace(own_redis: Any, keys: Keys, open_link: OpenLink) -> None:
    """The first write of the script is the XADD; ending an accepted request needs no memory."""
    server = await asyncio.to_thread(own_redis)
    link = await open_link(server.url)
    terms = Terms(10, 1000, 1000, 0.5, 100, 10, 10, 1000)
    accepted = await enqueue(link, keys, make_request("before"), terms=terms)
    kept = await books(link, keys)
    await link.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Exception, match="OOM"):
        await RequestQueue(link, keys).enqueue(make_request("r1"), terms=terms, retention_ms=RETENTION_MS)
    assert await books(link, keys) == kept
    assert await link.call("EXISTS", keys.seen("r1")) == 0
    assert await link.call_many([acknowledge_call(keys, accepted.entry, "before")]) == [1]
    assert await books(link, keys) == {}
    assert await link.call("XPENDING", keys.requests("normal"), GROUP) == [0, None, None, None]
