"""Workers on a host that is short of threads or memory."""

import signal
from collections.abc import Callable

import pytest

from orcastream.worker.main import ENGINE_FAILED
from tests.redis_server import one_server
from tests.worker import poison
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer

pytestmark = one_server("embedded")

LARGE = [f"{number:03}{'x' * 900}" for number in range(100)]
"""Choices that take time to prepare, in a payload that takes time to read."""


def test_a_worker_that_is_refused_threads_serves_all_requests_and_drains(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    worker = start_worker(patch=poison.refuses_threads)
    worker.wait_serving()
    for _ in range(2):
        fold = producer.read(producer.post(count_prompt, max_tokens=20, constraint={"choice": LARGE}))
        assert fold.terminal
        assert fold.terminal.error is None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_without_memory_for_one_token_exits_and_another_continues(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable[..., list[int]]
) -> None:
    """It would fail all requests that it claims, one after the other."""
    worker = start_worker(patch=poison.lacks_memory)
    worker.wait_serving()
    producer.post(count_prompt, request_id="large", max_tokens=5)
    assert worker.wait() == ENGINE_FAILED
    start_worker()
    assert producer.read("large").tokens[0] == undisturbed(count_prompt, max_tokens=5)


@pytest.mark.parametrize("patch", [poison.refuses_every_thread, poison.refuses_the_engines_thread])
def test_a_worker_that_is_refused_threads_at_its_start_may_be_started_again(
    start_worker: StartWorker, patch: Callable[[], None]
) -> None:
    worker = start_worker(patch=patch)
    assert worker.wait() == ENGINE_FAILED
    assert "critical the host refuses a thread that a worker needs" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_without_memory_for_the_weights_may_be_started_again(start_worker: StartWorker) -> None:
    worker = start_worker(patch=poison.lacks_memory_for_weights)
    assert worker.wait() == ENGINE_FAILED
    assert "critical not enough memory to load the model" in worker.log
