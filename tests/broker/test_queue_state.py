"""The queue's externally visible state: length, age, workers."""

import time

from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.queue_state import read_queue_state
from orcastream.schemas.keys import CLASSES, Keys
from tests.broker.conftest import MakeWorker
from tests.broker.scripted import enqueue, make_request
from tests.redis_server import RedisServer

NOBODY = {"serving": 0, "draining": 0, "stalled": 0}


async def test_an_unused_queue_is_empty(link: Link, keys: Keys) -> None:
    state = await read_queue_state(link, keys)
    assert state.lengths == state.ages_s == dict.fromkeys(CLASSES, 0)
    assert state.workers == NOBODY


async def test_length_counts_all_entries_and_age_only_unclaimed_ones(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    begin_ms = await link.server_time_ms()
    first = await enqueue(link, keys, make_request("r1"))
    second = await enqueue(link, keys, make_request("r2"))
    worker = await make_worker(redis_server.url, "w1")
    await Presence(link, keys, "w1").beat({"state": "serving"}, ttl_ms=50_000)
    while await link.server_time_ms() == begin_ms + 1:
        pass
    age_ms = await link.server_time_ms() - int(first.entry.entry_id.partition("-")[0])
    state = await read_queue_state(link, keys)
    assert state.lengths == {**dict.fromkeys(CLASSES, 0), "normal": 2}
    assert state.ages_s["normal"] * 1000 >= age_ms
    assert state.workers == {**NOBODY, "serving": 1}
    claimed = await worker.claimer.new(1)
    assert [one.ref for one in claimed] == [first.entry]
    behind = await read_queue_state(link, keys)
    assert behind.lengths["normal"] == 2
    assert (state.claimed["normal"], behind.claimed["normal"]) == (0, 1)
    assert behind.ages_s["normal"] <= (time.time() * 1000 - int(second.entry.entry_id.partition("-")[0])) / 1000 + 1
    await worker.claimer.new(1)
    assert (await read_queue_state(link, keys)).ages_s["normal"] == 0


async def test_a_claimed_and_ended_entry_leaves_no_age(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    await enqueue(link, keys, make_request("r1"))
    worker = await make_worker(redis_server.url, "w1")
    (claimed,) = await worker.claimer.new(1)
    await link.call("XDEL", keys.requests("normal"), claimed.ref.entry_id)
    state = await read_queue_state(link, keys)
    assert (state.lengths["normal"], state.ages_s["normal"]) == (0, 0)
