"""How many requests a worker claims, and in which order."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from orcastream.schemas.events import EventId, Output
from orcastream.schemas.keys import CLASSES, GROUP
from tests.chaos.patches import pace
from tests.patience import PATIENCE_S
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer

pytestmark = one_server("system")


def num_claimed(producer: Producer, worker: str | None = None) -> int:
    """By `worker`, or by any."""
    try:
        streams = [lane.requests(name) for lane in producer.keys.each_lane for name in CLASSES]
        found = [producer.redis.xpending(stream, GROUP) for stream in streams]
    except redis.ResponseError:  # no worker has made the groups yet
        return 0
    holders = [one for each in found for one in each["consumers"] or ()]
    return sum(one["pending"] for one in holders if worker in (None, one["name"].decode()))


def hold(folder: Path) -> None:
    """Begin each iteration only once a file with its number is there; one with an 'a' before it says that it awaits
    that.
    """
    from orcastream.engine import OrcaEngine
    from orcastream.worker import engine_loop

    step, gates = OrcaEngine.step, map(str, count())

    def held(self: OrcaEngine) -> Any:
        number = next(gates)
        gate = folder / number
        (folder / f"a{number}").touch()
        while not gate.exists():
            time.sleep(0.005)
        return step(self)

    OrcaEngine.step = held  # type: ignore[method-assign]
    engine_loop._HESITATION_S = PATIENCE_S  # type: ignore[misc]


def hold_passes(folder: Path) -> None:
    """As `hold`, and compute each iteration only once a file with an 'f' before its number is there. Output arrives
    only once iteration 3 is held, from that of iteration 2 on.
    """
    from orcastream.engine import OrcaEngine
    from orcastream.worker.outbox import Outbox

    hold(folder)
    call_before_forward, arrived, gates = OrcaEngine.call_before_forward, Outbox._arrived, count()
    is_there = (folder / "a3").exists

    def begin_pass(callback: Callable[[], None]) -> None:
        callback()
        gate = folder / f"f{next(gates)}"
        while not gate.exists():
            time.sleep(0.005)

    def arrive(self: Outbox, delivery: Any) -> None:
        if is_there() or not (folder / "f2").exists():
            arrived(self, delivery)
        else:
            self._loop.call_later(0.005, arrive, self, delivery)

    OrcaEngine.call_before_forward = lambda self, callback: call_before_forward(  # type: ignore[method-assign]
        self, partial(begin_pass, callback)
    )
    Outbox._arrived = arrive  # type: ignore[method-assign]


def release(folder: Path) -> None:
    for number in range(30):
        (folder / str(number)).touch()
        (folder / f"f{number}").touch()


def wait_until(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.002)


def wait_claimed(producer: Producer, wanted: int) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while (found := num_claimed(producer)) != wanted:
        assert found < wanted
        assert time.monotonic() < give_up, f"only {found} were claimed"
        time.sleep(0.002)


def wait_for_beats(producer: Producer, worker: str) -> None:
    """Wait until it has reported twice: its event loop has long done all that it had to do."""
    seen: set[bytes | None] = set()

    def has_reported_twice() -> bool:
        seen.add(producer.redis.hget(producer.keys.worker(worker), "clock_s"))
        return len(seen) > 2

    wait_until(has_reported_twice)


def waits_in_redis(producer: Producer, worker: str) -> bool:
    """Whether it waits in every lane."""
    clients = [one for one in producer.redis.client_list() if one["name"] == f"{worker}:claim"]
    return sum("b" in one["flags"] for one in clients) == producer.keys.queue_lanes


def waits_no_more(producer: Producer, worker: str) -> bool:
    """Whether it has not waited in Redis for a second: it only looks."""
    clients = [one for one in producer.redis.client_list() if one["name"] == f"{worker}:claim"]
    return all("b" not in one["flags"] and int(one["idle"]) >= 1 for one in clients)


def post_at_once(producer: Producer, prompts: list[list[int]]) -> list[str]:
    requests = [producer.request(prompt, max_tokens=3) for prompt in prompts]
    with producer.redis.pipeline(transaction=True) as together:
        for request in requests:
            together.xadd(producer.keys.requests("normal"), request.fields())  # type: ignore[arg-type]
        together.execute()
    return [request.id for request in requests]


def test_what_arrives_during_an_iteration_is_claimed_before_its_end(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """But no more than one iteration may begin."""
    start_worker(max_claims=3, patch=partial(hold, tmp_path)).wait_serving()
    ids = []
    for already in range(3):
        ids.append(producer.post(count_prompt, max_tokens=3))
        wait_claimed(producer, already + 1)
    ids += [producer.post(count_prompt, max_tokens=3) for _ in range(2)]
    (tmp_path / "0").touch()
    (tmp_path / "1").touch()  # until it begins, those before wait, and leave room for one only
    wait_claimed(producer, 5)
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


def test_a_claim_counts_for_the_iteration_in_which_it_came(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """The worker may have waited for it since an earlier one."""
    start_worker(max_claims=3, patch=partial(hold, tmp_path)).wait_serving()
    ids = [producer.post(count_prompt, max_tokens=3)]
    wait_until((tmp_path / "a0").exists)
    wait_claimed(producer, 1)
    (tmp_path / "0").touch()
    wait_until((tmp_path / "a1").exists)
    ids += post_at_once(producer, [count_prompt] * 5)
    wait_claimed(producer, 4)
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


def test_requests_that_are_about_to_begin_block_no_claims_in_the_iteration_that_begins_them(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """The worker sees them wait when it looks for room between their arrival in the engine and the plan."""
    name = start_worker(max_claims=1, patch=partial(hold_passes, tmp_path), lease_ms=60_000).wait_serving()
    ids = []
    for number in range(3):
        (tmp_path / str(number)).touch()
        ids.append(producer.post(count_prompt, max_tokens=9, ignore_eos=True))
        next(producer.events(ids[-1]))  # the engine takes it before its next iteration
        wait_until(lambda: waits_no_more(producer, name))
        (tmp_path / f"f{number}").touch()
        wait_until((tmp_path / f"a{number + 1}").exists)
    next(event for _, event in producer.events(ids[1]) if isinstance(event, Output))  # it has looked for room
    ids.append(producer.post(count_prompt, max_tokens=9, ignore_eos=True))
    (tmp_path / "3").touch()
    wait_claimed(producer, 4)
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


def test_a_worker_that_has_claimed_in_this_iteration_leaves_requests_to_an_idle_one(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """Redis serves workers that wait in turn, and the idle one waits anew after each request."""
    slow = start_worker(patch=partial(hold, tmp_path), lease_ms=60_000).wait_serving()
    ids = [producer.post(count_prompt, max_tokens=3)]
    wait_claimed(producer, 1)
    idle = start_worker(lease_ms=60_000).wait_serving()
    for _ in range(8):
        wait_until(lambda: waits_in_redis(producer, idle))
        ids.append(producer.post(count_prompt, max_tokens=3))
        wait_until(
            lambda: num_claimed(producer, slow) > 1 or producer.redis.xlen(producer.keys.requests("normal")) == 1
        )
        assert num_claimed(producer, slow) == 1
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


@pytest.mark.parametrize("lanes", [1, 6])
def test_a_worker_in_a_long_iteration_leaves_requests_to_an_idle_one(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path, lanes: int
) -> None:
    """Also if it has claimed nothing in it. But it takes what no idle worker does."""
    producer.keys = replace(producer.keys, queue_lanes=lanes)
    settings = {"lease_ms": 60_000, "queue_lanes": lanes}
    slow = start_worker(patch=partial(hold, tmp_path), **settings).wait_serving()
    ids = [producer.post(count_prompt, max_tokens=3)]
    wait_until((tmp_path / "a0").exists)
    wait_claimed(producer, 1)
    (tmp_path / "0").touch()
    wait_until((tmp_path / "a1").exists)
    worker = start_worker(**settings)
    idle = worker.wait_serving()
    wait_until(lambda: waits_no_more(producer, slow))
    for _ in range(8):
        wait_until(lambda: waits_in_redis(producer, idle))
        ids.append(producer.post(count_prompt, max_tokens=3))
        assert producer.read(ids[-1]).terminal is not None
    assert num_claimed(producer, slow) == 1
    worker.kill()
    ids.append(producer.post(count_prompt, max_tokens=3))
    wait_until(lambda: num_claimed(producer, slow) == 2)
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


def test_requests_that_only_await_their_turn_among_an_iterations_tokens_block_no_claims(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """The next iteration would compute fewer tokens than it may. But `max_claims` of them are enough."""
    settings = {"max_num_batched_tokens": 64, "max_claims": 4, "lease_ms": 2000}
    name = start_worker(patch=partial(hold, tmp_path), **settings).wait_serving()
    prompts = [[first, *(count_prompt * 40)[:39]] for first in range(10, 18)]
    ids = [producer.post(prompts[0], max_tokens=3)]
    wait_until((tmp_path / "a0").exists)
    ids += post_at_once(producer, prompts[1:4])
    wait_claimed(producer, 4)
    (tmp_path / "0").touch()  # computes the first; the second iteration has no tokens for the last
    wait_until((tmp_path / "a1").exists)
    ids += [producer.post(prompt, max_tokens=3) for prompt in prompts[4:]]
    wait_claimed(producer, 5)
    wait_for_beats(producer, name)
    assert num_claimed(producer) == 5
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


@pytest.mark.parametrize("max_waiting", [0, 2])
def test_a_worker_claims_what_it_runs_and_what_may_wait(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], max_waiting: int
) -> None:
    ids = [producer.post(count_prompt, max_tokens=60, ignore_eos=True) for _ in range(5)]
    settings = {"max_batch_size": 1, "max_waiting": max_waiting, "max_claims": 8, "lease_ms": 60_000}
    worker = start_worker(patch=partial(pace, 0.02), **settings)
    name = worker.wait_serving()
    assert producer.redis.hget(producer.keys.worker(name), "capacity") == str(1 + max_waiting).encode()
    most = 0
    give_up = time.monotonic() + PATIENCE_S
    while producer.redis.xlen(producer.keys.requests("normal")):
        assert time.monotonic() < give_up
        most = max(most, num_claimed(producer))
        time.sleep(0.002)
    assert most == 1 + max_waiting
    assert all(producer.read(request_id).terminal is not None for request_id in ids)


def test_choices_that_wait_for_their_prompt_block_no_claims(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """They wait only for the prompt: their slots are reserved, and other slots are free."""
    start_worker(policy="priority", max_num_batched_tokens=32, patch=partial(pace, 0.05)).wait_serving()
    prompt = (count_prompt * 300)[:2000]
    many = producer.request(prompt, n=4, max_tokens=1)
    producer.add(many.fields())
    next(producer.events(many.id))
    urgent = replace(producer.request(count_prompt, max_tokens=1), priority_class="realtime")
    producer.add(urgent.fields(), "realtime")
    assert producer.read(urgent.id).terminal is not None
    assert len(producer.redis.xrange(producer.keys.reply(many.id))) == 1, "the long prompt is not computed yet"
    assert producer.read(many.id).terminal is not None


@pytest.mark.parametrize(("class_weight", "first"), [(4, "low"), (40, "realtime")])
def test_a_request_that_has_waited_rises_above_its_class(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], class_weight: float, first: str
) -> None:
    """A request of class low that arrived a year before one of class realtime, which arrived a day ago."""
    epochs: dict[str, int] = {}
    now_ms, day_ms = int(time.time() * 1000), 86_400_000
    requests = {name: producer.request(count_prompt, max_tokens=20, ignore_eos=True) for name in ("low", "realtime")}
    for name, arrived_ms in (("low", now_ms - 365 * day_ms), ("realtime", now_ms - day_ms)):
        fields = replace(requests[name], priority_class=name).fields()
        producer.redis.xadd(producer.keys.requests(name), fields, id=f"{arrived_ms}-0")  # type: ignore[arg-type]
    start_worker(max_batch_size=1, class_weight=class_weight)
    for name, request in requests.items():
        producer.read(request.id)
        (entry_id, _), *_ = producer.redis.xrange(producer.keys.reply(request.id))
        epochs[name] = EventId.parse(entry_id).epoch
    assert min(epochs, key=lambda name: epochs[name]) == first


def test_under_fair_a_tenant_is_served_despite_the_flood_of_another(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    for max_tokens in [100, *[3000] * 11]:
        producer.post(count_prompt, tenant="heavy", max_tokens=max_tokens, ignore_eos=True)
    light = producer.post(count_prompt, tenant="light", max_tokens=5, ignore_eos=True)
    start_worker(max_batch_size=2, policy="fair")
    assert producer.read(light).terminal is not None
    # Two run at a time, and most are long: the first ones cannot have ended, and light was queued after all of them.
    assert producer.redis.xlen(producer.keys.requests("normal")) >= 10
