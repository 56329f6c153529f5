"""A request survives whatever happens to the worker that runs it: every token is published exactly once."""

import signal
import time
from collections.abc import Callable
from functools import partial

import pytest
import redis

from orcastream.broker.fold import Fold
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import EventId, Output, Started, Terminal, decode_event
from tests.chaos.patches import pace
from tests.patience import PATIENCE_S
from tests.redis_server import one_server
from tests.redis_waiting import wait_until
from tests.worker import poison
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("embedded")

BREAKS = 3
"""Connections are cut so often, each time in the midst of a new epoch."""


def disturb(
    producer: Producer,
    request_id: str,
    workers: dict[str, WorkerProcess],
    nth: int,
    fault: Callable[[WorkerProcess], None],
) -> tuple[Fold, list[Started]]:
    """Read a reply; at the nth tokens event apply `fault` to its writer. Return the fold and all started events."""
    fold, epochs, seen = Fold(), [], 0
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        if isinstance(event, Started):
            epochs.append(event)
        elif isinstance(event, Output):
            seen += 1
            if seen == nth:
                fault(workers[epochs[-1].worker])
    return fold, epochs


@pytest.fixture
def pair(start_worker: StartWorker) -> dict[str, WorkerProcess]:
    """Two workers, by name."""
    workers = [start_worker(patch=PACED), start_worker(patch=PACED)]
    return {worker.wait_serving(): worker for worker in workers}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7, "top_p": 0.9}], ids=["greedy", "sampled"])
def test_killed_worker_is_continued_from_the_token_where_it_stopped(
    producer: Producer, pair: dict, undisturbed: Callable, count_prompt: list[int], sampling: dict
) -> None:
    request_id = producer.post(count_prompt, **LONG, **sampling)
    fold, epochs = disturb(producer, request_id, pair, 20, WorkerProcess.kill)
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG, **sampling)
    assert len({started.worker for started in epochs}) == 2
    assert fold.terminal is not None
    assert fold.terminal.usage.completion_tokens == LONG["max_tokens"]
    producer.wait_empty()


def test_the_requests_of_a_dead_worker_are_computed_beside_those_of_the_next(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The survivor's own stream does not wait until a long prompt has been computed again, for seconds here."""
    first = start_worker(max_batch_size=1, patch=partial(pace, 0.05))
    first.wait_serving()
    taken = producer.events(producer.post(count_prompt * 180, request_id="taken", max_tokens=1000, ignore_eos=True))
    next(event for _, event in taken if isinstance(event, Output))
    start_worker(max_num_batched_tokens=16, max_batch_size=16, patch=partial(pace, 0.05)).wait_serving()
    own = producer.post(count_prompt, **LONG)
    next(event for _, event in producer.events(own) if isinstance(event, Output))
    first.kill()
    next(event for _, event in taken if isinstance(event, Started))
    written = producer.redis.xlen(producer.keys.reply(own))
    wait_until(lambda: producer.redis.xlen(producer.keys.reply(own)) >= written + 5)
    newest = producer.redis.xrevrange(producer.keys.reply("taken"), count=1)[0]
    assert isinstance(decode_event(newest[1]), Started), "its prompt is being computed"


@pytest.mark.parametrize("settings", [{"max_model_len": 64}, {"kv_cache_memory": 64 * 5120}], ids=["context", "cache"])
def test_a_worker_that_holds_fewer_tokens_ends_an_answer_where_clients_have_seen_it(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int], settings: dict
) -> None:
    longer = start_worker(patch=PACED)
    longer.wait_serving()
    request_id, fold = producer.post(count_prompt, ignore_eos=True), Fold()
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        if longer.running and fold.tokens and len(fold.tokens[0]) > 100:
            longer.kill()
            start_worker(**settings)
    assert fold.terminal is not None
    assert fold.terminal.outcome == "length"
    assert fold.terminal.usage.completion_tokens == len(fold.tokens[0]) > 100
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)[: len(fold.tokens[0])]
    producer.wait_empty()


def test_frozen_worker_that_wakes_up_is_fenced(
    producer: Producer, pair: dict, undisturbed: Callable, count_prompt: list[int]
) -> None:
    frozen: list[WorkerProcess] = []

    def freeze(worker: WorkerProcess) -> None:
        worker.signal(signal.SIGSTOP)
        frozen.append(worker)

    def thaw_at_takeover() -> Fold:
        fold, epochs = Fold(), 0
        for event_id, event in producer.events(request_id):
            fold.feed(event_id, event)
            if isinstance(event, Started):
                epochs += 1
                names.append(event.worker)
            elif isinstance(event, Output) and epochs == 1 and not frozen:
                if event.runs[0].position > 20:
                    freeze(pair[names[0]])
            elif isinstance(event, Output) and epochs == 2 and len(thawed) == 0:
                thawed.append(event_id)
                frozen[0].signal(signal.SIGCONT)
        return fold

    names: list[str] = []
    thawed: list[EventId] = []
    request_id = producer.post(count_prompt, **LONG)
    fold = thaw_at_takeover()
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert len(set(names)) == 2
    assert thawed, "the worker was thawed while the other worker wrote"
    # Entries of one epoch are contiguous: no entry of the older epoch follows the start of the newer one.
    ids = [EventId.parse(raw) for raw, _ in producer.redis.xrange(producer.keys.reply(request_id))]
    assert ids == sorted(ids)
    assert [event_id.epoch for event_id in ids] == sorted(event_id.epoch for event_id in ids)
    # The thawed worker still serves.
    again = producer.read(producer.post(count_prompt, max_tokens=5))
    assert isinstance(again.terminal, Terminal)
    assert frozen[0].running
    producer.wait_empty()


def test_a_worker_stopped_for_a_long_time_has_not_stalled(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable
) -> None:
    """There is no other worker: the request waits for the stopped one, whose own clock has not advanced."""
    worker = start_worker(stall_timeout_s=5, patch=PACED)
    pair = {worker.wait_serving(): worker}

    def sleep(worker: WorkerProcess) -> None:
        worker.signal(signal.SIGSTOP)
        time.sleep(7)  # while it is stopped
        worker.signal(signal.SIGCONT)

    request_id = producer.post(count_prompt, **LONG)
    fold, _ = disturb(producer, request_id, pair, 20, sleep)
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert worker.running
    producer.wait_empty()


def test_a_worker_stopped_until_an_answer_expired_leaves_it_alone(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    workers = [start_worker(retention_s=5, patch=PACED) for _ in range(2)]
    pair = {worker.wait_serving(): worker for worker in workers}
    request_id = producer.post(count_prompt, **LONG)
    _, epochs = disturb(producer, request_id, pair, 20, lambda worker: worker.signal(signal.SIGSTOP))
    asleep, other = (pair[epoch.worker] for epoch in epochs)
    key = producer.keys.reply(request_id)
    wait_until(lambda: not producer.redis.exists(key))
    other.kill()
    asleep.signal(signal.SIGCONT)
    producer.read(producer.post(count_prompt, **LONG))
    assert not producer.redis.exists(key)
    producer.wait_empty()


def test_drain_hands_the_rest_over_at_the_current_token(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    workers = [start_worker(drain_grace_s=0, patch=PACED) for _ in range(2)]
    pair = {worker.wait_serving(): worker for worker in workers}
    request_id = producer.post(count_prompt, **LONG)
    fold, epochs = disturb(producer, request_id, pair, 20, lambda worker: worker.signal(signal.SIGHUP))
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert len({started.worker for started in epochs}) == 2
    assert pair[epochs[0].worker].wait() == 0
    producer.wait_empty()


def test_drain_finishes_what_fits_in_the_grace_period(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    workers = [start_worker(lease_ms=60_000, drain_grace_s=PATIENCE_S, patch=PACED) for _ in range(2)]
    pair = {worker.wait_serving(): worker for worker in workers}
    request_id = producer.post(count_prompt, **LONG)
    fold, epochs = disturb(producer, request_id, pair, 5, lambda worker: worker.signal(signal.SIGTERM))
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert len(epochs) == 1
    assert pair[epochs[0].worker].wait() == 0


def test_broken_connections_end_epochs_and_lose_nothing(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    start_worker(lease_ms=60_000, patch=PACED).wait_serving()
    request_id = producer.post(count_prompt, **LONG)
    fold, epochs = Fold(), 0
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        epochs += isinstance(event, Started)
        if event_id.index == 5 and epochs <= BREAKS:
            for client in producer.redis.client_list():
                if "main" in client["name"] or (epochs == 2 and "control" in client["name"]):
                    producer.redis.client_kill_filter(_id=client["id"])
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert epochs == 1 + BREAKS
    producer.wait_empty()


def test_redis_killed_and_restarted_in_mid_stream(
    own_redis: Callable, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    server = own_redis(aof="always")
    producer = Producer(server.url)
    start_worker(server.url, patch=PACED).wait_serving()
    request_id = producer.post(count_prompt, **LONG)
    fold = Fold()
    for seen, (event_id, event) in enumerate(producer.events(request_id), start=1):
        fold.feed(event_id, event)
        if seen == 20:
            break
    server.restart()
    give_up = time.monotonic() + PATIENCE_S
    while fold.terminal is None and time.monotonic() < give_up:
        try:
            for event_id, event in producer.events(request_id):
                fold.feed(event_id, event)
        except redis.RedisError:
            time.sleep(0.05)
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    producer.wait_empty()
    producer.redis.close()


def test_request_that_kills_its_workers_is_set_aside(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    workers = [start_worker(max_deliveries=1, patch=poison.kills) for _ in range(3)]
    for worker in workers:
        worker.wait_serving()
    producer.post(count_prompt, request_id="poison", max_tokens=5)
    fold = producer.read("poison")
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.DEAD_LETTER
    assert not fold.tokens[0]
    producer.wait_empty()
    [(_, letter)] = producer.redis.xrange(producer.keys.dead)
    assert letter[b"id"] == b"poison"
    assert sum(worker.running for worker in workers) == 1, "one death that may be a neighbor's fault, and one alone"
