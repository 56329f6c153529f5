"""A deadline ends a request wherever it is: in the queue, at its claim, while its prompt or its answer is computed."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from orcastream.broker.fold import Fold
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output, Started, decode_event
from tests.chaos.patches import pace
from tests.patience import PATIENCE_S
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer

PAUSE_S = 0.1
"""Before each iteration of a paced worker."""
DEADLINES_S = (2, 8, 32)
"""The first in which this machine brings a token; none is enough for all of LONG at that pace."""


def expired(fold: Fold) -> int:
    """Tokens of a request that ended as expired."""
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.EXPIRED
    assert fold.terminal.usage.completion_tokens == len(fold.tokens[0]) if fold.tokens else True
    return fold.terminal.usage.completion_tokens


def wait_for_length(producer: Producer, length: int) -> None:
    """Until so many requests wait and run: an entry goes a moment after its terminal."""
    give_up = time.monotonic() + PATIENCE_S
    while (found := producer.redis.xlen(producer.keys.requests("normal"))) != length:
        assert time.monotonic() < give_up, found
        time.sleep(0.01)


def test_in_the_queue(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    """All places are taken: it ends where it waits, at its deadline and not when its turn would come."""
    start_worker(max_batch_size=1, patch=partial(pace, PAUSE_S)).wait_serving()
    runs = producer.post(count_prompt, **LONG)
    for _, event in producer.events(runs):
        if isinstance(event, Output):
            break
    waits = producer.post(count_prompt, timeout_s=1)
    assert expired(producer.read(waits)) == 0
    wait_for_length(producer, 1)  # the other one still runs


def posted_behind_the_look() -> None:
    """A worker that finds the queue empty goes on once something has been posted."""
    from orcastream.broker.queue import RequestQueue

    is_empty = RequestQueue.is_empty

    async def seen_empty(self: Any) -> Any:
        was_empty = await is_empty(self)
        while was_empty and await is_empty(self):  # noqa: ASYNC110 (Redis knows)
            await asyncio.sleep(0.01)
        return was_empty

    RequestQueue.is_empty = seen_empty
    pace(PAUSE_S)


def test_behind_one_that_came_between_look_and_claim(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The last look at the queue found nothing, and with no place free the worker looks no more."""
    start_worker(max_batch_size=1, patch=posted_behind_the_look).wait_serving()
    runs = producer.post(count_prompt, **LONG)
    waits = producer.post(count_prompt, timeout_s=1)
    assert expired(producer.read(waits)) == 0
    ((_, newest),) = producer.redis.xrevrange(producer.keys.reply(runs), count=1)
    assert isinstance(decode_event(newest), Output), "it still runs"


def test_at_the_claim(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    late = producer.post(count_prompt, timeout_s=0.001)
    time.sleep(0.01)
    start_worker().wait_serving()
    assert expired(producer.read(late)) == 0
    wait_for_length(producer, 0)


def test_in_prefill(producer: Producer, start_worker: StartWorker) -> None:
    """A prompt of a thousand iterations does not get to its end."""
    worker = start_worker(max_batch_size=1, max_num_batched_tokens=2, patch=partial(pace, PAUSE_S))
    worker.wait_serving()
    request = producer.post([20] * 2000, timeout_s=2, max_tokens=1)
    events = [event for _, event in producer.events(request)]
    assert isinstance(events[0], Started)
    assert expired(producer.read(request)) == 0
    follows = producer.post([20], max_tokens=1)
    assert producer.read(follows).terminal.error is None, "the engine has let go of it"  # type: ignore[union-attr]


def test_in_decode(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    """What was published stays, and the terminal counts it."""
    start_worker(patch=partial(pace, PAUSE_S)).wait_serving()
    for timeout_s in DEADLINES_S:
        num_tokens = expired(producer.read(producer.post(count_prompt, timeout_s=timeout_s, **LONG)))
        assert num_tokens < LONG["max_tokens"]
        if num_tokens:
            break
    else:
        pytest.fail("no token came")
    wait_for_length(producer, 0)


def test_what_a_saturated_worker_tells(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    """Once requests wait for it, until it has drained."""
    worker = start_worker(max_batch_size=2, patch=partial(pace, 0.01))
    name = worker.wait_serving()
    key = producer.keys.throughput
    asked: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}
    first = producer.read(producer.post(count_prompt, **asked))
    assert first.terminal is not None
    assert not producer.redis.exists(key), "it never had less room than was wanted"
    requests = [producer.post(count_prompt, **asked) for _ in range(5)]
    give_up = time.monotonic() + PATIENCE_S
    while not (report := producer.redis.hget(key, name)):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert b'"tokens_per_s"' in report
    for request in requests:
        producer.read(request)
    worker.signal(15)  # type: ignore[arg-type]
    assert worker.wait() == 0
    assert not producer.redis.exists(key)
