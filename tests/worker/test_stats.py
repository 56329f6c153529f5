"""What a worker reports about its engine while a console watches: exactly what the engine did; otherwise nothing."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.link import Link
from orcastream.broker.stats import StatsStream
from orcastream.engine import IterationRecord, OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stats import WorkerStats, decode_stats, encode_stats
from orcastream.worker.policy_switch import PolicySwitch
from orcastream.worker.roster import Roster
from orcastream.worker.stats.story import EngineStory
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import LONG, Producer

Told = list[tuple[list[IterationRecord], WorkerStats]]


def engine(**changes: object) -> OrcaEngine:
    return demo_engine(**{"max_num_batched_tokens": 64, **changes})


def story_of(one: OrcaEngine) -> EngineStory:
    settings = own_settings()
    roster = Roster(4)
    return EngineStory("w", one, roster, PolicySwitch(settings, one, None, roster))  # type: ignore[arg-type]


def told_of(one: OrcaEngine, requests: list[Request], every: int) -> Told:
    """Run to the end, and report after every `every` iterations."""
    story, told, records = story_of(one), [], []
    for request in requests:
        one.submit(request)
    while one.has_work:
        one.step()
        assert one.last_iteration is not None
        records.append(one.last_iteration)
        if len(records) == every or not one.has_work:
            stats = decode_stats(encode_stats(story.tell(records, time.monotonic(), lambda at_s: at_s * 1000)))
            told.append((records, stats))
            records = []
    return told


def request(name: str, prompt: int, outputs: int) -> Request:
    return Request(
        name, tuple(range(20, 20 + prompt)), SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True)
    )


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_every_iteration_is_reported_with_its_spans(every: int) -> None:
    requests = [request("a#0@1", 150, 3), request("b@2", 10, 9), request("c@3", 5, 2)]
    told = told_of(engine(prefix_cache=False), requests, every)
    tokens: dict[str, int] = {}
    for records, stats in told:
        assert len(stats["iterations"]) == len(records)
        for record, (begin_ms, took_ms, number) in zip(records, stats["iterations"], strict=True):
            batch = stats["batches"][number]
            names = [stats["stays"][stay]["id"] for stay in batch["stays"]]
            assert names == [one.id.partition("#")[0].partition("@")[0] for one in record.requests]
            assert (batch["tokens"], batch["decodes"]) == (list(record.lengths), record.decode_tokens)
            assert took_ms == pytest.approx(record.total_s * 1000, abs=0.01)
            assert begin_ms <= -took_ms + 1
            for name, length in zip(names, batch["tokens"], strict=True):
                tokens[name] = tokens.get(name, 0) + length
    assert tokens == {"a": 150 + 2, "b": 10 + 8, "c": 5 + 1}
    ends = {stay["id"]: stay for _, stats in told for stay in stats["stays"] if stay["left_ms"] is not None}
    assert {name: (stay["left"], stay["output_tokens"]) for name, stay in ends.items()} == {
        "a": ("finished", 3),
        "b": ("finished", 9),
        "c": ("finished", 2),
    }
    for stay in ends.values():
        assert stay["arrived_ms"] <= stay["joined_ms"] <= stay["first_ms"] <= stay["left_ms"]
    (blocks,) = told[-1][1]["blocks"]
    assert sum(blocks["runs"][1::2]) == blocks["num_blocks"] / blocks["stride"]


def test_no_two_requests_share_a_slot_and_preemptions_are_reported() -> None:
    one = engine(kv_cache_memory=2400 * 1024, prefix_cache=False, max_batch_size=8)
    requests = [request(f"r{number}@1", 60, 120) for number in range(8)]
    told = told_of(one, requests, 7)
    stays = {(stay["id"], stay["joined_ms"]): stay for _, stats in told for stay in stats["stays"]}.values()
    assert one.stats().preemptions > 0
    assert sum(stay["left"] == "preempted" for stay in stays) == one.stats().preemptions
    by_place: dict[int, list[tuple[float, float]]] = {}
    for stay in stays:
        assert stay["left_ms"] is not None
        by_place.setdefault(stay["place"], []).append((stay["joined_ms"], stay["left_ms"]))
    assert set(by_place) <= set(range(8))
    for spans in by_place.values():
        spans.sort()
        assert all(left <= joined for (_, left), (joined, _) in pairwise(spans))


class Watcher:
    """Reads the workers' reports, as a gateway does."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._last = "0-0"

    def watch(self, for_ms: int = 60_000) -> None:
        self._producer.redis.set(self._producer.keys.watched, "1", px=for_ms)
        control = wake_up(self._producer.keys, Control("watch", "*"))
        self._producer.redis.execute_command(*control)

    def read_until(self, holds: Callable[[WorkerStats], bool]) -> WorkerStats:
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            for _, entries in self._producer.redis.xread({self._producer.keys.stats: self._last}, block=1000) or []:
                for entry_id, fields in entries:
                    self._last = entry_id.decode()
                    stats = decode_stats(fields[b"payload"])
                    if holds(stats):
                        return stats
        raise AssertionError("no matching report within a minute")


@pytest.fixture
def watcher(producer: Producer) -> Watcher:
    return Watcher(producer)


@one_server("embedded")
def test_a_worker_reports_only_while_watched(
    producer: Producer, start_worker: StartWorker, watcher: Watcher, count_prompt: list[int]
) -> None:
    worker = start_worker(max_batch_size=2)
    name = worker.wait_serving()
    first = producer.post(count_prompt, **LONG)
    producer.read(first)
    assert not producer.redis.exists(producer.keys.stats)
    watcher.watch()
    second = producer.post(count_prompt, **LONG)
    stats = watcher.read_until(lambda stats: any(stay["id"] == second for stay in stats["stays"]))
    assert (stats["worker"], stats["policy"], stats["policies"], stats["num_places"]) == (name, "fcfs", [], 2)
    (stay,) = (stay for stay in stats["stays"] if stay["id"] == second)
    assert (stay["place"], stay["prompt_tokens"], stay["request_class"]) == (0, len(count_prompt), "normal")
    assert abs(stay["arrived_ms"] - time.time() * 1000) < 60_000
    if not stay["left"]:  # a fast machine ends the request before the first entry
        stats = watcher.read_until(lambda stats: any(stay["left"] for stay in stats["stays"]))
    assert [stay["left"] for stay in stats["stays"] if stay["id"] == second] == ["finished"]
    producer.redis.delete(producer.keys.watched)
    third = producer.post(count_prompt, **LONG)
    producer.read(third)
    length = producer.redis.xlen(producer.keys.stats)
    fourth = producer.post(count_prompt, **LONG)
    producer.read(fourth)
    assert producer.redis.xlen(producer.keys.stats) == length
    watcher.watch()
    fifth = producer.post(count_prompt, **LONG)
    watcher.read_until(lambda stats: any(stay["id"] == fifth for stay in stats["stays"]))


@one_server("embedded")
def test_the_policy_switches_if_allowed(
    producer: Producer,
    start_worker: StartWorker,
    watcher: Watcher,
    count_prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCASTREAM_ALLOW_POLICY_SWITCH", "true")
    willing = start_worker(max_batch_size=2).wait_serving()
    monkeypatch.delenv("ORCASTREAM_ALLOW_POLICY_SWITCH")
    unwilling = start_worker().wait_serving()
    watcher.watch()
    for policy in ("nonsense", "static"):
        producer.redis.execute_command(*wake_up(producer.keys, Control("policy", policy)))
    stats = watcher.read_until(lambda stats: stats["worker"] == willing and stats["policy"] == "static")
    assert {"fcfs", "static"} <= set(stats["policies"])
    stats = watcher.read_until(lambda stats: stats["worker"] == unwilling)
    assert (stats["policy"], stats["policies"]) == ("fcfs", [])
    ids = [producer.post(count_prompt, max_tokens=5 + number, ignore_eos=True) for number in range(5)]
    assert [producer.read(one).terminal.usage.completion_tokens for one in ids] == [5, 6, 7, 8, 9]  # type: ignore[union-attr]


@one_server("embedded")
async def test_a_lease_wakes_workers_once(redis_server: RedisServer, producer: Producer) -> None:
    link = await Link.open(redis_server.url)
    try:
        stream = StatsStream(link, producer.keys)
        assert not await stream.is_watched()
        assert not await stream.tell(b"nobody looks")
        await stream.watch(for_ms=60_000)
        await stream.watch(for_ms=60_000)
        assert await link.call("XLEN", producer.keys.control) == 1
        assert await stream.is_watched()
        assert await stream.tell(b"one")
        assert await stream.tell(b"two")
        read = await stream.read("0-0")
        assert [payload for _, payload in read] == [b"one", b"two"]
        assert await stream.read(read[0][0]) == read[1:]
        assert 0 < await link.call("PTTL", producer.keys.stats) <= 60_000
        await stream.watch(for_ms=1)
        while await stream.is_watched():  # noqa: ASYNC110 (a key that expires tells nobody)
            await asyncio.sleep(0.001)
        assert not await stream.tell(b"three")
        await stream.watch(for_ms=60_000)
        assert await link.call("XLEN", producer.keys.control) == 2
    finally:
        await link.close()
