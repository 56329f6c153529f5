"""Requests of a dead worker continue beside others; after a second death, none is blamed until it has run alone."""

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream import demo
from orcastream.engine import EngineConfig
from orcastream.engine.model.load import load_model, load_model_config, resolve_device
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import EventId, Output, Started
from orcastream.schemas.keys import GROUP
from orcastream.worker.main import ENGINE_FAILED
from tests.chaos.patches import pace
from tests.lora import save_adapter
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer, one_server
from tests.redis_waiting import wait_until
from tests.worker import poison, poisoned
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("system")

LEASE_MS = 600_000
"""Of the workers beside one whose engine stands still; nobody here is as patient."""


class Fleet:
    """Keeps the number of live workers constant, as a supervisor would."""

    def __init__(self, start_worker: StartWorker, size: int, **settings: Any) -> None:
        self._start = lambda: start_worker(**settings)
        self.workers = [self._start() for _ in range(size)]
        self.deaths = 0

    def tend(self) -> None:
        """Start one worker for each that died."""
        for index, worker in enumerate(self.workers):
            if not worker.running:
                self.deaths += 1
                self.workers[index] = self._start()

    def tend_until(self, done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < give_up, self.workers[0].log[-2000:]
            self.tend()
            time.sleep(0.02)


@pytest.fixture
def count_of(tokenizer: Any) -> Callable[[int], list[int]]:
    return lambda start: tokenizer.encode(f"Count from {start} to {start + 40}")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two adapters, `poison` and `another`."""
    config = EngineConfig(str(demo.MODEL_DIR), device="cpu", dtype="float32")
    network = load_model(config, load_model_config(config), resolve_device("cpu"))
    folder = tmp_path_factory.mktemp("adapters")
    save_adapter(network, folder / "another", seed=1)
    return save_adapter(network, folder / "poison", seed=0).parent


@pytest.mark.parametrize(
    ("patch", "asked"),
    [
        (poison.kills, {}),
        (poison.kills_before, {"constraint": {"choice": ["poison"]}}),
        (poison.kills_reading, {"adapter": "poison"}),
    ],
)
def test_a_request_that_kills_its_workers_harms_no_other(
    producer: Producer,
    start_worker: StartWorker,
    undisturbed: Callable,
    count_of: Callable,
    adapters: Path,
    patch: Callable[[], None],
    asked: dict[str, Any],
) -> None:
    """Seven run when it arrives; if deaths beside others were enough, each of them could be set aside with it.

    It kills the worker in an iteration, or earlier, while its constraint is compiled or its adapter is read.
    """
    prompts = [count_of(start) for start in range(7)]
    ids = [producer.post(prompt, max_tokens=120, ignore_eos=True) for prompt in prompts]
    producer.post(count_of(9), request_id="poison", max_tokens=5, **asked)
    fleet = Fleet(start_worker, 2, max_deliveries=2, adapters=str(adapters), patch=patch)
    fleet.tend_until(producer.queue_is_empty)
    for request_id, prompt in zip(ids, prompts, strict=True):
        fold = producer.read(request_id)
        assert fold.tokens[0] == undisturbed(prompt, max_tokens=120, ignore_eos=True)
        assert fold.terminal is not None
        assert fold.terminal.error is None
    assert producer.read("poison").terminal.error is ErrorCode.DEAD_LETTER  # type: ignore[union-attr]
    letters = producer.redis.xrange(producer.keys.dead)
    assert [fields[b"id"] for _, fields in letters] == [b"poison"]
    assert fleet.deaths == 3, "two deaths beside the others, and one alone"


def died_twice(producer: Producer, prompt: list[int], **options: Any) -> None:
    """Post a request that two workers claimed and did not advance before they died."""
    producer.post(prompt, request_id="good", **options)
    stream = producer.keys.requests("normal")
    producer.redis.xgroup_create(stream, GROUP, "0")
    [(_, [(entry_id, _)])] = producer.redis.xreadgroup(GROUP, "dead", {stream: ">"})
    producer.redis.xclaim(stream, GROUP, "dead", 0, [entry_id], idle=LEASE_MS, retrycount=2, justid=True)


def deliveries(producer: Producer) -> dict[bytes, int]:
    """Return the deliveries that count, by the ids of claimed requests."""
    stream = producer.keys.requests("normal")
    ids = {entry_id: fields[b"id"] for entry_id, fields in producer.redis.xrange(stream)}
    pending = producer.redis.xpending_range(stream, GROUP, "-", "+", 10)
    return {ids[one["message_id"]]: one["times_delivered"] for one in pending}


@pytest.mark.parametrize("patch", [poison.kills_once_counted, poison.kills_in_flight_once_counted])
def test_a_death_in_an_iteration_that_began_before_is_not_the_suspects(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], patch: Callable[[], None]
) -> None:
    """The other request is being computed when the suspect could begin; or has been launched, with `overlap`."""
    died_twice(producer, count_prompt, max_tokens=900, ignore_eos=True)
    producer.post(count_prompt, request_id="poison", max_tokens=900, ignore_eos=True)
    worker = start_worker(max_deliveries=2, patch=patch)
    assert worker.wait() == -signal.SIGKILL
    assert deliveries(producer) == {b"good": 1, b"poison": 1}


def test_a_death_right_after_its_turn_alone_is_not_the_suspects(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The other request, which waited meanwhile, ends the worker as soon as it is computed."""
    died_twice(producer, count_prompt * 150, max_tokens=900, ignore_eos=True)
    worker = start_worker(
        max_deliveries=2, max_num_batched_tokens=16, max_batch_size=16, patch=poison.kills_before_writing
    )
    next(event for _, event in producer.events("good") if isinstance(event, Started))
    producer.post(count_prompt, request_id="poison", max_tokens=5)
    assert worker.wait() == -signal.SIGKILL
    assert deliveries(producer) == {b"good": 1, b"poison": 1}


def test_a_suspect_whose_adapter_waits_for_room_stops_no_other(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], adapters: Path
) -> None:
    """There is room for one adapter, which a running request holds until its end."""
    long = {"max_tokens": 400, "ignore_eos": True}
    died_twice(producer, count_prompt, adapter="another", **long)
    held = producer.post(count_prompt, adapter="poison", **long)
    start_worker(max_deliveries=2, adapters=str(adapters), max_adapters=1, patch=PACED)
    for request_id in (held, "good"):
        fold = producer.read(request_id)
        assert fold.terminal is not None
        assert (fold.terminal.error, len(fold.tokens[0])) == (None, 400)


def test_poisoned_requests_among_good_ones(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_of: Callable
) -> None:
    outcome = poisoned.run(producer, start_worker, [count_of(start) for start in range(40)], undisturbed, poisoned=4)
    assert outcome.wrong == []
    assert (outcome.dead_letters, outcome.right) == (4, 36)
    assert outcome.deaths >= 2 + 4, "two deaths beside others, and each poisoned request's alone"


def test_cut_connections_do_not_count_as_attempts(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    """Deaths, each after new tokens, then cut connections while the prompt is recomputed."""
    slow = {"max_num_batched_tokens": 16, "max_batch_size": 16, "max_deliveries": 2, "patch": partial(pace, 0.01)}
    prompt = count_prompt * 150
    request_id = producer.post(prompt, max_tokens=40, ignore_eos=True)
    events = producer.events(request_id)
    for _ in range(2):
        worker = start_worker(**slow)
        next(event for _, event in events if isinstance(event, Output))
        worker.kill()
    start_worker(**slow)
    cuts = 0
    for _, event in events:
        if isinstance(event, Started) and cuts < 4:
            cuts += 1
            _cut(producer)
    assert cuts == 4
    fold = producer.read(request_id)
    assert fold.terminal is not None
    assert fold.terminal.error is None, fold.terminal.message
    assert fold.tokens[0] == undisturbed(prompt, max_tokens=40, ignore_eos=True)


def _cut(producer: Producer) -> None:
    for client in producer.redis.client_list():
        if client["name"].endswith(":main"):
            producer.redis.client_kill_filter(_id=client["id"])
            return


def test_a_new_token_starts_the_count_again(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    request_id = producer.post(count_prompt, max_tokens=3000, ignore_eos=True)
    events = producer.events(request_id)
    for _ in range(2):
        worker = start_worker()
        started = next(event for _, event in events if isinstance(event, Started))
        next(event for _, event in events if isinstance(event, Output))
        wait_until(lambda: list(deliveries(producer).values()) == [1])
        assert started.worker == worker.wait_serving()
        worker.kill()


@pytest.fixture
def stalled(producer: Producer, start_worker: StartWorker, count_of: Callable) -> WorkerProcess:
    """A worker whose engine has begun a request that it never completes."""
    worker = start_worker(lease_ms=LEASE_MS, patch=poison.stalls)
    worker.wait_serving()
    producer.post(count_of(1), request_id="stall", max_tokens=5)
    next(producer.events("stall"))
    return worker


def test_a_worker_with_a_stalled_engine_hands_its_requests_on(
    producer: Producer, start_worker: StartWorker, stalled: WorkerProcess, count_of: Callable, undisturbed: Callable
) -> None:
    """Its lease outlasts the test: claimed requests that it does not compute are handed on without waiting for it."""
    other = start_worker(lease_ms=LEASE_MS)
    name = other.wait_serving()
    ids = [producer.post(count_of(start), max_tokens=20, ignore_eos=True) for start in range(10)]
    for start, request_id in enumerate(ids):
        fold = producer.read(request_id)
        assert fold.tokens[0] == undisturbed(count_of(start), max_tokens=20, ignore_eos=True)
        assert fold.started is not None
        assert fold.started.worker == name
    taken = [
        request_id
        for request_id in ids
        if EventId.parse(producer.redis.xrange(producer.keys.reply(request_id))[0][0]).index == 0
        and len([1 for _, event in producer.events(request_id) if isinstance(event, Started)]) > 1
    ]
    assert len(taken) <= 4, "it claimed only what fits into one iteration"
    assert stalled.running


def test_a_stall_is_reported_while_redis_is_away(
    own_redis: Callable[..., RedisServer], start_worker: StartWorker, count_of: Callable
) -> None:
    """Nothing else in the worker polls for it then, and each poll of the test counts for at most a second."""
    server, port = own_redis(), free_port()
    producer = Producer(server.url)
    worker = start_worker(server.url, patch=poison.stalls, admin_port=port, stall_timeout_s=5)
    worker.wait_serving()
    producer.post(count_of(1), request_id="stall", max_tokens=5)
    next(producer.events("stall"))
    server.kill()
    for pause_s in (8, 30, 100):  # the stall itself, and as long again for a worker that gets no CPU core
        time.sleep(pause_s)
        if httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=PATIENCE_S).status_code == 503:
            break
    else:
        pytest.fail("the stall is not reported")
    assert worker.running


def test_a_worker_whose_engine_ends_silently_exits(
    producer: Producer, start_worker: StartWorker, count_of: Callable
) -> None:
    """Such a worker used to keep its requests and renew their leases, as if it were idle."""
    worker = start_worker(patch=poison.mutes)
    worker.wait_serving()
    producer.post(count_of(1), request_id="mute", max_tokens=5)
    assert worker.wait() == ENGINE_FAILED


def test_a_worker_whose_event_loop_stands_still_exits(
    producer: Producer, start_worker: StartWorker, count_of: Callable, undisturbed: Callable
) -> None:
    worker = start_worker(patch=poison.blocks, stall_timeout_s=1)
    worker.wait_serving()
    producer.post(count_of(1), request_id="block", max_tokens=5)
    assert worker.wait() == ENGINE_FAILED
    assert "critical the event loop stands still" in worker.log
    start_worker()
    assert producer.read("block").tokens[0] == undisturbed(count_of(1), max_tokens=5)
