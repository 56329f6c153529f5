"""Choices that are the best of several samples: nothing is seen of the others, whatever happens to the worker."""

from statistics import fmean
from typing import Any

import pytest
import torch

import demo
from engine import EngineConfig, OrcaEngine
from schemas.errors import ErrorCode
from schemas.events import Output, Started
from schemas.sampling import SamplingParams
from schemas.seed import choice_seed
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer

pytestmark = one_server("system")

SAMPLING: dict[str, Any] = {"temperature": 1.5, "max_tokens": 60, "ignore_eos": True}
SEED, N, BEST_OF = 3, 2, 5
Ranked = list[list[int]]


@pytest.fixture(scope="module")
def best(count_prompt: list[int]) -> Ranked:
    """All samples, best first, each computed alone by an engine in this process."""
    torch.set_num_threads(1)
    engine = OrcaEngine.load(EngineConfig(model=str(demo.MODEL_DIR), device="cpu", self_check=False))
    samples = []
    for index in range(BEST_OF):
        sampling = SamplingParams(seed=choice_seed(SEED, index), logprobs=0, **SAMPLING)
        done = engine.generate([count_prompt], sampling)[0]
        assert done.logprobs is not None
        samples.append((fmean(item[0] for item in done.logprobs), list(done.output_ids)))
    return [tokens for _, tokens in sorted(samples, reverse=True)]


def post(producer: Producer, prompt: list[int], **options: Any) -> str:
    return producer.post(prompt, **{"n": N, "best_of": BEST_OF, "seed": SEED, **SAMPLING, **options})


def test_the_best_samples_come_best_first_and_at_once(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], best: Ranked
) -> None:
    start_worker(max_batch_size=3)  # fewer places than candidates: the rest waits
    request_id = post(producer, count_prompt)
    events = [event for _, event in producer.events(request_id)]
    assert [event.type for event in events] == ["started", "finished"]
    fold = producer.read(request_id)
    assert fold.tokens == best[:N]
    assert fold.terminal is not None
    assert fold.terminal.usage.completion_tokens == sum(map(len, best[:N]))
    producer.wait_empty()


def test_a_takeover_begins_anew(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    workers = {worker.wait_serving(): worker for worker in (start_worker(), start_worker())}
    request_id = post(producer, count_prompt, max_tokens=400)
    first = next(event for _, event in producer.events(request_id) if isinstance(event, Started))
    workers[first.worker].kill()
    events = [event for _, event in producer.events(request_id)]
    assert [event.type for event in events] == ["started", "started", "finished"]
    fold = producer.read(request_id)
    assert fold.terminal is not None
    assert fold.terminal.error is None
    alone = producer.read(post(producer, count_prompt, max_tokens=400))
    assert fold.tokens == alone.tokens


def test_a_cancel_shows_nothing(producer: Producer, start_worker: StartWorker, count_prompt: list[int]) -> None:
    start_worker()
    request_id = post(producer, count_prompt, max_tokens=3000)
    for _, event in producer.events(request_id):
        assert not isinstance(event, Output)
        if isinstance(event, Started):
            producer.redis.set(producer.keys.cancel(request_id), 1, ex=60)
            producer.redis.xadd(producer.keys.control, {"type": "cancel", "target": request_id})
    fold = producer.read(request_id)
    assert fold.terminal is not None
    assert (fold.terminal.error, fold.tokens) == (ErrorCode.CANCELLED, [[], []])
    producer.wait_empty()
