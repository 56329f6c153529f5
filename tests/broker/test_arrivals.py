"""Which waiting request a worker is given first: its class counts, and so does the time it has waited."""

import asyncio
import random

import pytest
from redis.exceptions import ResponseError

from broker.arrivals import Arrivals
from broker.link import Link
from broker.queue import ensure_groups
from schemas.keys import CLASSES, Keys
from tests.broker.conftest import OpenLink
from tests.broker.scripted import bare_fields, make_request
from tests.redis_server import RedisServer

AGING_MS = 10_000
Waiting = list[tuple[str, int]]
"""Class and arrival, milliseconds of the server's clock."""


async def post(link: Link, keys: Keys, waiting: Waiting) -> None:
    """Entries as if they had arrived at those times; those of one class in order."""
    await ensure_groups(link, keys)
    for name, arrived_ms in sorted(waiting, key=lambda one: one[1]):
        fields = bare_fields(make_request(f"{name}-{arrived_ms}", priority_class=name))
        await link.call("XADD", keys.requests(name), f"{arrived_ms}-1", *fields)


async def claim(arrivals: Arrivals, count: int) -> Waiting:
    return [(one.ref.priority_class, one.ref.order[0]) for one in await arrivals.claim(count)]


def in_order(waiting: Waiting, aging_ms: int) -> Waiting:
    return sorted(waiting, key=lambda one: (one[1] + CLASSES.index(one[0]) * aging_ms, CLASSES.index(one[0])))


@pytest.fixture
def arrivals(link: Link, keys: Keys) -> Arrivals:
    return Arrivals(link, keys, "w1", AGING_MS)


@pytest.mark.parametrize("aging_ms", [0, 1, AGING_MS, 604_800_000])
@pytest.mark.parametrize("seed", range(3))
async def test_claims_come_in_one_order_over_all_classes(link: Link, keys: Keys, seed: int, aging_ms: int) -> None:
    rng = random.Random(seed)
    times = rng.sample(range(1, 5 * AGING_MS), 40)
    waiting = [(rng.choice(CLASSES), at_ms) for at_ms in times]
    await post(link, keys, waiting)
    arrivals = Arrivals(link, keys, "w1", aging_ms)
    claimed: Waiting = []
    for count in (1, 3, 7, 100):
        claimed += await claim(arrivals, count)
    assert claimed == in_order(waiting, aging_ms)


async def test_an_entry_rises_by_a_class_per_interval(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    await post(link, keys, [("high", 50_000), ("normal", 50_000 - AGING_MS), ("low", 49_999 - 2 * AGING_MS)])
    assert [name for name, _ in await claim(arrivals, 3)] == ["low", "high", "normal"]


async def test_no_class_starves_however_much_comes_above_it(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    """One place a second, for which two urgent requests come each second."""
    await post(link, keys, [("low", 1)])
    for second in range(1, 1000):
        await post(link, keys, [("realtime", second * 1000 + offset) for offset in (0, 500)])
        if (await claim(arrivals, 1))[0][0] == "low":
            break
    assert second * 500 <= 3 * AGING_MS + 1000, "behind those that came within three intervals of it"


async def test_a_tie_goes_to_the_more_urgent_class(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    await post(link, keys, [(name, (4 - rank) * AGING_MS) for rank, name in enumerate(CLASSES)])
    assert [name for name, _ in await claim(arrivals, 4)] == list(CLASSES)


async def test_rivals_share_what_waits(redis_server: RedisServer, link: Link, keys: Keys, open_link: OpenLink) -> None:
    waiting = [(name, at_ms) for at_ms in range(1, 11) for name in CLASSES]
    await post(link, keys, waiting)
    links = [await open_link(redis_server.url) for _ in range(4)]
    rivals = [Arrivals(one, keys, f"w{index}", AGING_MS) for index, one in enumerate(links)]
    shares = await asyncio.gather(*(claim(rival, 8) for rival in rivals))
    assert sorted(one for share in shares for one in share) == sorted(in_order(waiting, AGING_MS)[:32])
    assert all(share == in_order(share, AGING_MS) for share in shares)


async def test_what_is_deleted_is_passed_over(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    await post(link, keys, [("normal", at_ms) for at_ms in (1, 2, 3, 4)])
    await link.call("XDEL", keys.requests("normal"), "1-1", "3-1")
    assert await claim(arrivals, 9) == [("normal", 2), ("normal", 4)]
    assert await claim(arrivals, 9) == []


async def test_a_wait_brings_the_first_one_first(
    redis_server: RedisServer, link: Link, keys: Keys, arrivals: Arrivals, open_link: OpenLink
) -> None:
    await post(link, keys, [("realtime", 2 + 3 * AGING_MS), ("low", 1), ("high", 2 + 2 * AGING_MS)])
    waited = await arrivals.wait(await open_link(redis_server.url), 1000)
    assert [one.ref.priority_class for one in waited] == ["low", "realtime", "high"]


async def test_a_class_whose_key_holds_something_else_stops_no_other(
    link: Link, keys: Keys, arrivals: Arrivals
) -> None:
    await post(link, keys, [("normal", 1)])
    await link.call("SET", keys.requests("realtime"), "junk")
    assert await claim(arrivals, 2) == [("normal", 1)]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await arrivals.claim(2)


async def test_missing_streams_and_groups_are_made(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    assert await arrivals.claim(1) == []
    await post(link, keys, [("low", 1)])
    await link.call("XGROUP", "DESTROY", keys.requests("low"), "workers")
    assert await arrivals.claim(1) == []
    assert await claim(arrivals, 1) == [("low", 1)]
