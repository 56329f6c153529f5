"""Choices that are the best of several samples: the others stay hidden, whatever happens to the worker."""

from statistics import fmean
from typing import Any

import pytest
import torch

from orcastream.engine import OrcaEngine
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output, Started
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import choice_seed
from orcastream.text.tokenizer import Tokenizer
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.demo_engine import demo_engine
from tests.worker.producer import Producer
from tests.worker.worker_process import PACED

pytestmark = one_server("system")

SAMPLING: dict[str, Any] = {"temperature": 1.5, "max_tokens": 60, "ignore_eos": True}
SEED, N, BEST_OF = 3, 2, 5
Ranked = list[list[int]]


@pytest.fixture(scope="module")
def engine() -> OrcaEngine:
    """An undisturbed engine in this process."""
    torch.set_num_threads(1)
    return demo_engine()


@pytest.fixture(scope="module")
def best(engine: OrcaEngine, count_prompt: list[int]) -> Ranked:
    """Return all samples, best first, each computed alone."""
    samples = []
    for index in range(BEST_OF):
        sampling = SamplingParams(seed=choice_seed(SEED, index), logprobs=0, **SAMPLING)
        done = engine.generate([count_prompt], sampling)[0]
        assert done.logprobs is not None
        samples.append((fmean(item[0] for item in done.logprobs), list(done.output_ids)))
    return [tokens for _, tokens in sorted(samples, reverse=True)]


def post(producer: Producer, prompt: list[int], **options: Any) -> str:
    return producer.post(prompt, **{"n": N, "best_of": BEST_OF, "seed": SEED, **SAMPLING, **options})


def test_the_best_samples_arrive_best_first_and_together(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], best: Ranked
) -> None:
    start_worker(max_batch_size=3)  # fewer slots than candidates: the rest wait
    request_id = post(producer, count_prompt)
    events = [event for _, event in producer.events(request_id)]
    assert [event.type for event in events] == ["started", "finished"]
    fold = producer.read(request_id)
    assert fold.tokens == best[:N]
    assert fold.terminal is not None
    assert fold.terminal.usage.completion_tokens == sum(map(len, best[:N]))
    producer.wait_empty()


@pytest.mark.parametrize(
    "options",
    [{"best_of": BEST_OF, "seed": SEED, **SAMPLING}, {"use_beam_search": True, "best_of": 4, "ignore_eos": True}],
    ids=["samples", "beams"],
)
def test_a_takeover_starts_over(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], options: dict[str, Any]
) -> None:
    body = {"n": N, "temperature": 0, **options, "max_tokens": 300}
    workers = {worker.wait_serving(): worker for worker in (start_worker(patch=PACED), start_worker(patch=PACED))}
    request_id = producer.post(count_prompt, **body)
    first = next(event for _, event in producer.events(request_id) if isinstance(event, Started))
    workers[first.worker].kill()
    events = [event for _, event in producer.events(request_id)]
    assert [event.type for event in events] == ["started", "started", "finished"]
    fold = producer.read(request_id)
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens == producer.read(producer.post(count_prompt, **body)).tokens


@pytest.mark.parametrize(
    "options",
    [{}, {"best_of": 6, "length_penalty": 2.0}, {"best_of": 4, "early_stopping": True, "min_tokens": 8}],
    ids=["width n", "wider", "early"],
)
def test_hypotheses_equal_those_of_a_bare_engine(
    producer: Producer, start_worker: StartWorker, tokenizer: Tokenizer, engine: OrcaEngine, options: dict[str, Any]
) -> None:
    prompt = tokenizer.encode("Count from 3 to 9 and then go on")
    start_worker()
    request_id = producer.post(prompt, n=3, use_beam_search=True, max_tokens=24, **options)
    events = [event for _, event in producer.events(request_id)]
    assert [event.type for event in events] == ["started", "finished"]
    expected = engine.generate(
        [prompt],
        SamplingParams(temperature=0, max_tokens=24, min_tokens=options.get("min_tokens", 0)),
        n=3,
        beam_width=options.get("best_of", 3),
        length_penalty=options.get("length_penalty", 1.0),
        early_stopping=options.get("early_stopping", False),
    )
    fold = producer.read(request_id)
    assert fold.tokens == [list(one.output_ids) for one in expected]
    assert len({tuple(tokens) for tokens in fold.tokens}) == 3
    assert fold.terminal is not None
    assert [ending.finish_reason for ending in fold.terminal.endings] == [one.finish_reason for one in expected]
    producer.wait_empty()


def test_a_beam_search_wider_than_the_batch_is_refused_by_name(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    start_worker(max_batch_size=2)
    fold = producer.read(producer.post(count_prompt, best_of=3, use_beam_search=True, max_tokens=5))
    assert fold.terminal is not None
    assert (fold.terminal.error, fold.terminal.field_name) == (ErrorCode.INVALID_REQUEST, "best_of")
    assert producer.read(producer.post(count_prompt, max_tokens=2)).terminal is not None
    producer.wait_empty()


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
