"""A deadline ends a request at any stage: in the queue, at its claim, during prefill and during decode."""

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
    """Return the tokens of a request that ended as expired."""
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.EXPIRED
    assert fold.terminal.usage.completion_tokens == len(fold.tokens[0]) if fold.tokens else True
    return fold.terminal.usage.completion_tokens


def wait_for_length(producer: Producer, length: int) -> None:
    """Wait until this number of requests wait or run: an entry disappears shortly after its terminal event."""
    give_up = time.monotonic() + PATIENCE_S
    while (found := producer.redis.xlen(producer.keys.requests("normal"))) != length:
        assert time.monotonic() < give_up, found
        time.sleep(0.01)


def test_in_the_queue(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    """All slots are taken: the request ends in the queue at its deadline, not when its turn would come."""
    start_worker(max_batch_size=1, patch=partial(pace, PAUSE_S)).wait_serving()
    runs = producer.post(count_prompt, **LONG)
    for _, event in producer.events(runs):
        if isinstance(event, Output):
            break
    waits = producer.post(count_prompt, timeout_s=1)
    assert expired(producer.read(waits)) == 0
    wait_for_length(producer, 1)  # the first request still runs


def posted_behind_the_look() -> None:
    """A worker that finds the queue empty continues after a request has been posted."""
    from orcastream.broker.queue import RequestQueue

    is_empty = RequestQueue.is_empty

    async def seen_empty(self: Any) -> Any:
        was_empty = await is_empty(self)
        while was_empty and await is_empty(self):  # noqa: ASYNC110 (Redis knows)
            await asyncio.sleep(0.01)
        return was_empty

    RequestQueue.is_empty = seen_empty
    pace(PAUSE_S)


def test_after_a_request_that_arrived_between_look_and_claim(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The last look at the queue found nothing, and a worker without a free slot does not look again."""
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
    """A prompt of a thousand iterations is not completed."""
    worker = start_worker(max_batch_size=1, max_num_batched_tokens=2, patch=partial(pace, PAUSE_S))
    worker.wait_serving()
    request = producer.post([20] * 2000, timeout_s=2, max_tokens=1)
    events = [event for _, event in producer.events(request)]
    assert isinstance(events[0], Started)
    assert expired(producer.read(request)) == 0
    follows = producer.post([20], max_tokens=1)
    assert producer.read(follows).terminal.error is None, "the engine has dropped it"  # type: ignore[union-attr]


def test_in_decode(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    """Published tokens remain, and the terminal event counts them."""
    start_worker(patch=partial(pace, PAUSE_S)).wait_serving()
    for timeout_s in DEADLINES_S:
        num_tokens = expired(producer.read(producer.post(count_prompt, timeout_s=timeout_s, **LONG)))
        assert num_tokens < LONG["max_tokens"]
        if num_tokens:
            break
    else:
        pytest.fail("no token arrived")
    wait_for_length(producer, 0)


def test_a_saturated_worker_reports_its_throughput(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """The worker reports from the first waiting request until it has drained."""
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
