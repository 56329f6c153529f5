"""Fixtures of the worker's tests: real worker processes on a real Redis server."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orcastream import demo
from orcastream.schemas.sampling import SamplingParams
from orcastream.text.tokenizer import Tokenizer
from tests.redis_server import RedisServer
from tests.worker.demo_engine import demo_engine
from tests.worker.producer import Producer
from tests.worker.worker_process import WorkerProcess

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def producer(redis_server: RedisServer) -> Iterator[Producer]:
    """A foreign producer on an empty server."""
    producer = Producer(redis_server.url)
    yield producer
    producer.redis.close()


@pytest.fixture
def start_worker(redis_server: RedisServer, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts worker processes; those still running at the end are killed."""
    workers: list[WorkerProcess] = []

    def start(url: str = redis_server.url, **settings: Any) -> WorkerProcess:
        workers.append(WorkerProcess(url, tmp_path / f"worker{len(workers)}.log", **settings))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The demo model's tokenizer."""
    return Tokenizer.load(str(demo.MODEL_DIR))


@pytest.fixture(scope="session")
def undisturbed() -> Callable[..., list[int]]:
    """The tokens that one undisturbed engine in this process generates; every disturbed run must equal them."""
    engine = demo_engine()

    @cache
    def run(prompt: tuple[int, ...], sampling: SamplingParams) -> tuple[int, ...]:
        return tuple(engine.generate([prompt], sampling)[0].output_ids)

    def generate(prompt: list[int], **sampling: Any) -> list[int]:
        return list(run(tuple(prompt), SamplingParams(**{"temperature": 0.0, **sampling})))

    return generate


@pytest.fixture(scope="session")
def count_prompt(tokenizer: Tokenizer) -> list[int]:
    """A prompt with a long answer."""
    return tokenizer.encode("Count from 1 to 300")
