"""Which waiting request a worker gets first: class and waiting time both count."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest
from redis.exceptions import ResponseError

from orcastream.broker.arrivals import Arrivals
from orcastream.broker.entry import LAST_ENTRY_ID
from orcastream.broker.link import Link
from orcastream.broker.queue import ensure_groups
from orcastream.broker.queued import queued_requests
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.keys import CLASSES, GROUP, Keys
from tests.broker.conftest import MakeWorker, OpenLink
from tests.broker.scripted import RETENTION_MS, bare_fields, make_request, take_over
from tests.redis_server import RedisServer

WEIGHT = 4.0
LONG_MS = 1_000_000
"""Beside ages of this unit the time that a test itself takes is nothing."""
Waiting = list[tuple[str, int]]
"""Class and age, in LONG_MS."""


async def post(link: Link, keys: Keys, waiting: Waiting) -> None:
    """Add entries as if they had waited for the given times; the age of each follows the dash in its id."""
    await ensure_groups(link, keys)
    now_ms = await link.server_time_ms()
    for name, age in sorted(waiting, key=lambda one: -one[1]):
        fields = bare_fields(make_request(f"{name}-{age}", priority_class=name))
        await link.call("XADD", keys.requests(name), f"{now_ms - age * LONG_MS}-{abs(age)}", *fields)


async def claim(arrivals: Arrivals, count: int) -> Waiting:
    return [(one.ref.priority_class, one.ref.order[1]) for one in await arrivals.claim(count)]


def in_order(waiting: Waiting, class_weight: float) -> Waiting:
    def key(one: tuple[str, int]) -> tuple[float, int]:
        rank = CLASSES.index(one[0])
        return -one[1] * class_weight ** (3 - rank), rank

    return sorted(waiting, key=key)


class Place:
    """One slot, free once in LONG_MS, and the requests that wait for it.

    The claim script compares the heads of the classes, so its choice at a future time is its choice among heads that
    already have the ages of that time.
    """

    def __init__(self, link: Link, keys: Keys, class_weight: float) -> None:
        self._link = link
        self._keys = keys
        self._arrivals = Arrivals(link, keys, "w1", class_weight)
        self._waiting: dict[str, deque[int]] = {name: deque() for name in CLASSES}
        self._now = 0
        self.waits: dict[str, list[int]] = {name: [] for name in CLASSES}

    def num_waiting(self, name: str) -> int:
        return len(self._waiting[name])

    async def serve(self, coming: Sequence[str]) -> str:
        """Add these arrivals, serve one request, and return its class."""
        for name in coming:
            self._waiting[name].append(self._now)
        await self._link.call("DEL", *(self._keys.requests(name) for name in CLASSES))
        heads = [(name, self._now - times[0]) for name, times in self._waiting.items() if times]
        await post(self._link, self._keys, heads)
        [(name, age)] = await claim(self._arrivals, 1)
        self._waiting[name].popleft()
        self.waits[name].append(age)
        self._now += 1
        return name

    def waits_so_far(self, name: str) -> list[int]:
        """Return the waits in order, including those of requests that still wait."""
        return sorted(self.waits[name] + [self._now - since for since in self._waiting[name]])


def p99(waits: list[int]) -> int:
    return waits[len(waits) * 99 // 100]


@pytest.fixture
def arrivals(link: Link, keys: Keys) -> Arrivals:
    return Arrivals(link, keys, "w1", WEIGHT)


@pytest.mark.parametrize("class_weight", [1.0, 1.5, WEIGHT, 1000.0])
@pytest.mark.parametrize("seed", range(3))
async def test_claims_come_in_one_order_over_all_classes(
    link: Link, keys: Keys, seed: int, class_weight: float
) -> None:
    rng = random.Random(seed)
    waiting = [(rng.choice(CLASSES), age) for age in rng.sample(range(1, 500), 40)]
    await post(link, keys, waiting)
    arrivals = Arrivals(link, keys, "w1", class_weight)
    claimed: Waiting = []
    for count in (1, 3, 7, 100):
        claimed += await claim(arrivals, count)
    assert claimed == in_order(waiting, class_weight)


@pytest.mark.parametrize("age", [1, 10, 10_000])
@pytest.mark.parametrize(("times_as_old", "first"), [(15, "realtime"), (17, "normal")])
async def test_the_lead_of_a_class_is_a_ratio_of_ages_whatever_they_are(
    link: Link, keys: Keys, arrivals: Arrivals, age: int, times_as_old: int, first: str
) -> None:
    await post(link, keys, [("realtime", age), ("normal", age * times_as_old)])
    assert (await claim(arrivals, 1))[0][0] == first


@pytest.mark.parametrize(("passed", "first"), [(0, "low"), (10, "realtime")])
async def test_an_urgent_entry_overtakes_as_both_age(
    link: Link, keys: Keys, arrivals: Arrivals, passed: int, first: str
) -> None:
    await post(link, keys, [("low", 100 + passed), ("realtime", 1 + passed)])
    assert (await claim(arrivals, 1))[0][0] == first


async def test_at_twice_the_load_waits_keep_their_ratio(link: Link, keys: Keys) -> None:
    """The weights of the two classes differ by a factor of 16; a fifth is required."""
    rng = random.Random(1)
    place = Place(link, keys, WEIGHT)
    for num_slots in (100, 500):
        for _ in range(num_slots):
            await place.serve(rng.choices(CLASSES, weights=(1, 2, 4, 3), k=2))
        urgent, normal = place.waits_so_far("realtime"), place.waits_so_far("normal")
        assert 5 * p99(urgent) <= p99(normal)
        assert max(normal) > num_slots // 3, "otherwise nothing has been tested"


@pytest.mark.parametrize(("class_weight", "above", "ratio"), [(4, "normal", 4), (3, "high", 9), (2, "realtime", 8)])
async def test_no_class_starves_below_one_whose_queue_is_bounded(
    link: Link, keys: Keys, class_weight: float, above: str, ratio: int
) -> None:
    """At twice the load; arrivals that find ten waiting are refused."""
    place = Place(link, keys, class_weight)
    served = ""
    while served != "low" and len(place.waits[above]) < 1000:
        coming = [above] * min(2, 10 - place.num_waiting(above))
        served = await place.serve([*coming, "low"] if len(place.waits[above]) == 30 else coming)
    [waited] = place.waits["low"]
    longest = max(place.waits[above])
    assert longest >= 8
    assert ratio * (longest - 1) <= waited <= ratio * longest + 1, "neither starved nor served early"


@pytest.mark.parametrize("class_weight", [1.0, WEIGHT])
async def test_an_entry_without_an_age_counts_as_a_millisecond_old(link: Link, keys: Keys, class_weight: float) -> None:
    """The server's clock was set back, so the ids are ahead of it. Among equals, the more urgent class goes first."""
    await post(link, keys, [(name, rank - 4) for rank, name in enumerate(CLASSES)])
    assert [name for name, _ in await claim(Arrivals(link, keys, "w1", class_weight), 4)] == list(CLASSES)


async def test_rivals_share_the_waiting_requests(
    redis_server: RedisServer, link: Link, keys: Keys, open_link: OpenLink
) -> None:
    waiting = [(name, age) for age in range(1, 11) for name in CLASSES]
    await post(link, keys, waiting)
    links = [await open_link(redis_server.url) for _ in range(4)]
    rivals = [Arrivals(one, keys, f"w{index}", WEIGHT) for index, one in enumerate(links)]
    shares = await asyncio.gather(*(claim(rival, 8) for rival in rivals))
    assert sorted(one for share in shares for one in share) == sorted(in_order(waiting, WEIGHT)[:32])
    assert all(share == in_order(share, WEIGHT) for share in shares)


async def test_requests_below_the_least_age_are_left_to_others(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    """Whatever the class: the older ones behind the head of another class are claimed."""
    await post(link, keys, [("realtime", 1), ("realtime", 3), ("low", 1), ("low", 4), ("normal", -1)])
    claimed = await arrivals.claim(9, least_age_ms=2 * LONG_MS)
    assert [(one.ref.priority_class, one.ref.order[1]) for one in claimed] == [("realtime", 3), ("low", 4)]
    assert len(await claim(arrivals, 9)) == 3


async def test_deleted_entries_are_skipped(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    await post(link, keys, [("normal", age) for age in (1, 2, 3, 4)])
    stream = keys.requests("normal")
    ids = [entry_id for entry_id, _ in await link.call("XRANGE", stream, "-", "+")]
    await link.call("XDEL", stream, ids[0], ids[2])
    assert await claim(arrivals, 9) == [("normal", 3), ("normal", 1)]
    assert await claim(arrivals, 9) == []


async def test_a_blocking_claim_returns_the_first_entry_first(
    redis_server: RedisServer, link: Link, keys: Keys, arrivals: Arrivals, open_link: OpenLink
) -> None:
    await post(link, keys, [("realtime", 2), ("high", 7), ("normal", 33), ("low", 127)])
    waited = await arrivals.wait(await open_link(redis_server.url), 1000)
    assert [one.ref.priority_class for one in waited] == ["normal", "realtime", "low", "high"]


async def test_claims_by_the_clock_survive_a_restart(
    own_redis: Callable[..., RedisServer], keys: Keys, open_link: OpenLink
) -> None:
    """The append-only file logs the effects of a script that reads the clock, not the script."""
    waiting = [(name, age) for age in (1, 2, 3) for name in CLASSES]
    server = own_redis(aof="always")
    link = await open_link(server.url)
    await post(link, keys, waiting)
    before = await claim(Arrivals(link, keys, "w1", WEIGHT), 5)
    server.restart()
    link = await open_link(server.url)
    pending = [await link.call("XPENDING", keys.requests(name), GROUP) for name in CLASSES]
    assert [one[0] for one in pending] == [[name for name, _ in before].count(each) for each in CLASSES]
    assert before + await claim(Arrivals(link, keys, "w1", WEIGHT), 99) == in_order(waiting, WEIGHT)


async def test_a_class_key_of_the_wrong_type_stops_no_other_class(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    await post(link, keys, [("normal", 1)])
    await link.call("SET", keys.requests("realtime"), "junk")
    assert await claim(arrivals, 2) == [("normal", 1)]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await arrivals.claim(2)


async def test_missing_streams_and_groups_are_created(link: Link, keys: Keys, arrivals: Arrivals) -> None:
    assert await arrivals.claim(1) == []
    await post(link, keys, [("low", 1)])
    await link.call("XGROUP", "DESTROY", keys.requests("low"), "workers")
    assert await arrivals.claim(1) == []
    assert await claim(arrivals, 1) == [("low", 1)]


async def test_the_last_possible_entry_id_stops_nothing(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A producer chose it: no entry follows, and Redis refuses a scan that begins after it."""
    await ensure_groups(link, keys)
    fields = bare_fields(make_request("last", priority_class="low"))
    await link.call("XADD", keys.requests("low"), LAST_ENTRY_ID, *fields)
    worker, heir = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    assert [one.request_id for one in await worker.claimer.new(2)] == ["last"]
    await post(link, keys, [("normal", 1)])
    assert [one.request_id for one in await worker.claimer.new(2)] == ["normal-1"]
    assert [one.request_id async for one in queued_requests(link, keys)] == ["normal-1", "last"]
    sweeper = Sweeper(link, keys, "g", retention_ms=RETENTION_MS, chunk=1)
    assert [(await sweeper.step()).expired for _ in range(2)] == [(), ()]
    taken = [await take_over(heir) for _ in range(2)]
    assert {one.request_id for one in taken} == {"normal-1", "last"}
    assert await heir.claimer.expired(2) is not None
