"""Engines that share one model."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ((3, 1, 4, 1, 5), tuple(range(40)), (9,))


def test_two_engines_on_one_model_take_turns(
    make_model: Callable[..., PreTrainedModel],
    make_engine: Callable[..., OrcaEngine],
    greedy_reference: Callable[..., Any],
) -> None:
    model = make_model("mistral")
    expected = [greedy_reference(model, prompt, 12) for prompt in PROMPTS]
    engines = [make_engine(model, block_size=4), make_engine(model, block_size=8, num_blocks=32)]
    assert all(engine.model is model for engine in engines)
    requests = [[Request(f"{prompt}", prompt, GREEDY) for prompt in PROMPTS] for _ in engines]
    for engine, own in zip(engines, requests, strict=True):
        for request in own:
            engine.submit(request)
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
            engine.check_integrity()
    assert [[list(request.output_ids) for request in own] for own in requests] == [expected, expected]


def test_computing_with_the_model_in_between_changes_nothing(
    make_model: Callable[..., PreTrainedModel],
    make_engine: Callable[..., OrcaEngine],
    greedy_reference: Callable[..., Any],
) -> None:
    model = make_model()
    engine = make_engine(model)
    request = Request("a", PROMPTS[1], GREEDY)
    engine.submit(request)
    engine.step()
    expected = greedy_reference(model, PROMPTS[1], 12)  # with transformers' own attention
    while engine.has_work:
        engine.step()
    assert list(request.output_ids) == expected
