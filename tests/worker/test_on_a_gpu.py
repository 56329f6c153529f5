"""A worker on a GPU: `orcastream worker --device cuda` continues others' requests, is killed, and is continued."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orcastream.schemas.events import Started
from tests.redis_server import RedisServer, one_server
from tests.redis_waiting import wait_until
from tests.worker.conftest import StartWorker
from tests.worker.gpu_worker import GpuWorker, needs_a_device
from tests.worker.producer import Producer
from tests.worker.worker_process import PACED

pytest.importorskip("triton")
pytestmark = [one_server("system"), needs_a_device]

SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 7, "top_p": 0.9}, {"presence_penalty": 1.0})


@pytest.fixture
def start_gpu_worker(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[[], GpuWorker]]:
    """Starts a worker, which is killed at the end."""
    workers: list[GpuWorker] = []

    def start() -> GpuWorker:
        workers.append(GpuWorker(redis_server.url, tmp_path / "gpu.log", max_batch_size=4, max_model_len=128))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def grown(producer: Producer, reply: str, length: int) -> bool:
    """Return whether a reply log has more than `length` entries."""
    return bool(producer.redis.xlen(reply) > length)


def test_answers_go_from_a_cpu_to_a_gpu_and_back(
    producer: Producer, start_worker: StartWorker, start_gpu_worker: Callable, undisturbed: Callable, count_prompt: list
) -> None:
    asked = [{"max_tokens": 60, "ignore_eos": True, **sampling} for sampling in SAMPLINGS]
    first = start_worker(patch=PACED)
    ids = [producer.post(count_prompt, **sampling) for sampling in asked]
    for start_next in (start_gpu_worker, start_worker):
        for request_id in ids:
            reply = producer.keys.reply(request_id)
            wait_until(partial(grown, producer, reply, producer.redis.xlen(reply) + 5))
        first.kill()
        first = start_next()
    for request_id, sampling in zip(ids, asked, strict=True):
        assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, **sampling)
        events = [event for _, event in producer.events(request_id)]
        assert len({event.worker for event in events if isinstance(event, Started)}) == 3
    producer.wait_empty()
