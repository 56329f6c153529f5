"""The cache in the engine: hits, eviction, host memory and preemption change no token."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine, Request
from orcastream.engine.kv import store
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, MakeModel, request, run, tokens

Reference = Callable[..., list[int]]


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(96), k=length))


PROMPT, OTHER = prompt_of(3, 24), prompt_of(4, 40)


def test_a_prompt_that_is_fully_cached_leaves_at_least_one_token_to_compute(
    make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Reference
) -> None:
    model = make_model()
    expected = greedy_reference(model, PROMPT, 8)
    engine = make_engine(model)
    assert tokens(run(engine, request("first", PROMPT))["first"]) == expected
    again = request("again", PROMPT)  # six whole blocks, all of them cached
    assert tokens(run(engine, again)["again"]) == expected
    assert again.cached_tokens == 23
    assert engine.stats().prompt_tokens == 24 + 1


def test_a_preempted_request_that_hits_its_own_cached_prefix_on_return(
    make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Reference
) -> None:
    model = make_model()
    expected = [greedy_reference(model, prompt, 24) for prompt in (PROMPT, OTHER)]
    engine = make_engine(model, num_blocks=24)
    both = [request("a", PROMPT, max_tokens=24), request("b", OTHER, max_tokens=24)]
    for each in both:
        engine.submit(each)
    events: dict[str, list[int | None]] = {"a": [], "b": []}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event.token)
        engine.check_integrity()
    assert [events["a"], events["b"]] == expected
    assert engine.stats().preemptions > 0
    preempted = next(each for each in both if each.timeline.preempted_s)
    recomputed = sum(length for _, length in preempted.timeline.chunks) - len(preempted.prompt_ids)
    assert 0 < recomputed < len(preempted.prompt_ids)


def test_a_hit_on_a_block_that_the_same_batch_has_not_computed_yet(
    make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Reference
) -> None:
    model = make_model()
    expected = greedy_reference(model, PROMPT, 8)
    longer = (*PROMPT, 5, 6, 7)
    engine = make_engine(model, max_num_batched_tokens=64)
    first, second, third = request("a", PROMPT), request("b", PROMPT), request("c", longer)
    for each in (first, second, third):
        engine.submit(each)
    events = {each.id: engine_events for each, engine_events in ((first, []), (second, []), (third, []))}
    for event in engine.step():
        events[event.request_id].append(event.token)
    assert engine.num_running == 1  # the others wait for its result
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event.token)
        engine.check_integrity()
    assert events["a"] == events["b"] == expected
    assert events["c"] == greedy_reference(model, longer, 8)
    assert (second.cached_tokens, third.cached_tokens) == (23, 24)


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_an_evicted_prompt_is_hit_from_host_memory(
    family: str, overlap: str, make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Reference
) -> None:
    model = make_model(family)
    prompts = [prompt_of(seed, 36) for seed in range(4)]
    expected = [greedy_reference(model, prompt, 6) for prompt in prompts]
    engine = make_engine(model, num_blocks=14, host_cache_memory=1 << 20, overlap=overlap)
    for turn in range(3):
        for index, prompt in enumerate(prompts):
            each = request(f"{turn}-{index}", prompt, max_tokens=6)
            assert tokens(run(engine, each)[each.id]) == expected[index]
            assert each.cached_tokens == (32 if turn else 0)
    assert engine.stats().prompt_tokens == 4 * 36 + 8 * 4


def test_without_host_memory_an_evicted_prompt_is_computed_again(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", num_blocks=14)
    run(engine, request("a", OTHER))
    run(engine, request("b", tuple(range(48))))
    run(engine, again := request("again", OTHER))
    assert again.cached_tokens < 36


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_what_cannot_be_copied_for_want_of_memory_is_recomputed(
    every: int,
    preemption: str,
    family: str,
    make_engine: MakeEngine,
    make_model: MakeModel,
    greedy_reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(family)
    prompts = {f"{turn}-{seed}": prompt_of(seed, 30) for turn in range(3) for seed in range(4)}
    expected = {name: greedy_reference(model, prompt, 16) for name, prompt in prompts.items()}
    move, copies = store._move, 0

    def move_or_fail(*arguments: Any) -> None:
        nonlocal copies
        copies += 1
        if copies % every == 0:
            raise torch.OutOfMemoryError("no memory for a copy")
        move(*arguments)

    monkeypatch.setattr(store, "_move", move_or_fail)
    engine = make_engine(
        model, num_blocks=24, host_cache_memory=1 << 18, preemption=preemption, overlap="on", max_batch_size=4
    )
    found = run(engine, *[request(name, prompt, max_tokens=16) for name, prompt in prompts.items()])
    assert {name: tokens(events) for name, events in found.items()} == expected
    assert engine.stats().preemptions > 0
    assert copies > every


@pytest.mark.parametrize("dtype", ["int8", "fp8", "bfloat16"])
def test_in_fewer_bits_tokens_depend_on_neither_chunks_nor_preemption_nor_hits(
    dtype: str, make_engine: MakeEngine, make_model: MakeModel
) -> None:
    model = make_model()
    prompts = [prompt_of(seed, 30) for seed in range(4)]
    prompts.append((*prompts[0][:20], 1, 2, 3))

    def outputs(**settings: Any) -> tuple[list[list[int | None]], OrcaEngine]:
        engine = make_engine(model, kv_cache_dtype=dtype, **settings)
        each = [request(str(index), prompt, max_tokens=24) for index, prompt in enumerate(prompts)]
        return [tokens(events) for events in run(engine, *each).values()], engine

    whole, _ = outputs(num_blocks=256, prefix_cache=False, max_batch_size=1)
    chunked, engine = outputs(num_blocks={"bfloat16": 10, "int8": 9, "fp8": 9}[dtype], max_num_batched_tokens=8)
    assert engine.stats().preemptions > 0
    assert chunked == whole


def long_run(engine: OrcaEngine, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> list[Request]:
    """Run all prompts, one more every other step; check that every token is as expected."""
    each = [
        Request(str(index), prompt, SamplingParams(temperature=0, max_tokens=len(expected[index])))
        for index, prompt in enumerate(prompts)
    ]
    events: dict[str, list[int | None]] = {request.id: [] for request in each}
    waiting, steps = list(each), 0
    while waiting or engine.has_work:
        if waiting and steps % 2 == 0:
            engine.submit(waiting.pop(0))
        for event in engine.step():
            events[event.request_id].append(event.token)
        engine.check_integrity()
        steps += 1
    assert list(events.values()) == expected
    assert engine.cache.blocks_used == 0
    return each


WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 10},
    "gemma2": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 10, "num_hidden_layers": 6},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 10},
}


@pytest.mark.parametrize("family", list(WINDOWED))
@pytest.mark.parametrize("host", [0, 1 << 20])
def test_windows_with_prefix_hits_and_preemption(
    family: str, host: int, make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Reference
) -> None:
    model: PreTrainedModel = make_model(family, **WINDOWED[family])
    choose = random.Random(5)
    base = tuple(choose.randrange(96) for _ in range(37))
    prompts = [(*base[:cut], *(choose.randrange(96) for _ in range(more))) for cut, more in CUTS]
    expected = [greedy_reference(model, prompt, 14) for prompt in prompts]
    engine = make_engine(model, num_blocks=16, max_num_batched_tokens=12, host_cache_memory=host)
    requests = long_run(engine, prompts, expected)
    assert sum(each.cached_tokens for each in requests) > 0
    if family == "gemma2":
        assert engine.stats().preemptions > 0


CUTS = [(37, 0), (37, 4), (20, 9), (37, 0), (9, 20), (37, 11), (33, 1), (20, 9)]
