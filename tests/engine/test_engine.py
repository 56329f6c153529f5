"""The engine's public interface: submit, step, cancel, and failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orcastream.engine import EngineConfig, OrcaEngine, Request, RequestState
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.stopping import FinishReason
from tests.engine.running import MakeEngine, MakeModel, crowd, request, run, tokens


def test_events_carry_positions_and_the_finish_reason(make_engine: MakeEngine) -> None:
    events = run(make_engine(), request("a"))["a"]
    assert [event.position for event in events] == list(range(8))
    assert [event.finish_reason for event in events] == [None] * 7 + [FinishReason.LENGTH]
    assert all(event.error is None and event.logprobs is None and event.cached_tokens == 0 for event in events)


def test_an_idle_step_does_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert not engine.has_work
    assert engine.step() == []
    assert engine.stats().iterations == 0


def test_eos_and_stop_tokens_are_emitted_and_end_the_request(make_engine: MakeEngine, make_model: MakeModel) -> None:
    free = tokens(run(make_engine(), request("a"))["a"])
    second = free[1]
    assert second is not None
    stopped = run(make_engine(), request("a", stop_token_ids=(second,)))["a"]
    cut = free[: free.index(second) + 1]
    assert tokens(stopped) == cut
    assert stopped[-1].finish_reason is FinishReason.STOP
    with_eos = make_engine(make_model("llama", eos_token_id=second))
    assert with_eos.eos_token_ids == {second}
    assert tokens(run(with_eos, request("a"))["a"]) == cut
    assert tokens(run(with_eos, request("b", ignore_eos=True))["b"]) == free


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_bars_eos_and_stop_tokens(
    temperature: float, make_engine: MakeEngine, make_model: MakeModel
) -> None:
    """Every token but one would end the request."""
    engine = make_engine(make_model("llama", eos_token_id=[9, 10]))
    stops = tuple(token for token in range(96) if token not in (9, 10, 50))[:64]
    asked = request("a", temperature=temperature, stop_token_ids=stops, min_tokens=6, max_tokens=20)
    generated = tokens(run(engine, asked)["a"])
    assert len(generated) >= 6
    assert not set(generated[:6]) & {*stops, 9, 10}


def test_an_eos_outside_the_vocabulary_is_not_barred(make_engine: MakeEngine, make_model: MakeModel) -> None:
    engine = make_engine(make_model("llama", eos_token_id=[5, 200, -1]))
    found = run(engine, request("a"), request("b", min_tokens=3), request("c", logit_bias=((95, 100),), min_tokens=3))
    assert [len(found[name]) for name in "ab"] == [8, 8]
    assert tokens(found["c"]) == [95] * 8


def test_min_tokens_matches_transformers(
    make_engine: MakeEngine, make_model: MakeModel, greedy_reference: Callable[..., list[int]]
) -> None:
    model = make_model("llama", eos_token_id=list(range(0, 96, 2)))
    expected = greedy_reference(model, (1, 2, 3), 20, min_new_tokens=5)
    assert tokens(run(make_engine(model), request("a", min_tokens=5, max_tokens=20))["a"]) == expected


def test_tokens_do_not_depend_on_the_batch(make_engine: MakeEngine) -> None:
    alone = {each.id: tokens(run(make_engine(), each)[each.id]) for each in crowd()}
    together = run(make_engine(num_blocks=256), *crowd())
    squeezed_engine = make_engine(num_blocks=14, max_num_batched_tokens=8)
    squeezed = run(squeezed_engine, *crowd())
    assert squeezed_engine.stats().preemptions > 0
    assert {name: tokens(events) for name, events in together.items()} == alone
    assert {name: tokens(events) for name, events in squeezed.items()} == alone


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_continuation_runs_as_if_undisturbed(cut: int, make_engine: MakeEngine) -> None:
    whole = {name: tokens(events) for name, events in run(make_engine(), *crowd()).items()}
    continued = [
        Request(each.id, each.prompt_ids, each.sampling, output_ids=[token or 0 for token in whole[each.id][:cut]])
        for each in crowd()
    ]
    rest = run(make_engine(), *continued)
    for each in continued:
        assert [event.position for event in rest[each.id]] == list(range(cut, 12))
        assert tokens(rest[each.id]) == whole[each.id][cut:]
        assert each.output_ids == whole[each.id]


def test_a_continuation_counts_towards_min_and_max_tokens(make_engine: MakeEngine, make_model: MakeModel) -> None:
    engine = make_engine(make_model("llama", eos_token_id=list(range(96))[::2]))
    events = run(engine, request("a", outputs=(1, 3, 5), min_tokens=5, max_tokens=6))["a"]
    assert [event.position for event in events][:2] == [3, 4]
    assert all(token is not None and token % 2 for token in tokens(events)[:2])
    assert events[-1].position <= 5


def test_logprobs_of_the_chosen_and_the_likeliest(make_engine: MakeEngine) -> None:
    events = run(make_engine(), request("a", logprobs=3))["a"]
    for event in events:
        own, likeliest = event.logprobs
        assert [own, event.token] == [likeliest[0][1], likeliest[0][0]]
        assert len(likeliest) == 3


def test_max_tokens_defaults_to_the_remaining_context_or_cache(make_engine: MakeEngine) -> None:
    by_cache = make_engine(num_blocks=6)
    assert len(run(by_cache, request("a", max_tokens=None))["a"]) == 6 * 4 - 3
    by_context = make_engine(num_blocks=64, max_model_len=20)
    events = run(by_context, request("a", max_tokens=None))["a"]
    assert len(events) == 17
    assert events[-1].finish_reason is FinishReason.LENGTH


def test_a_request_object_is_used_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    once = request("a")
    run(engine, once)
    assert once.state is RequestState.FINISHED
    with pytest.raises(InvalidRequest, match="never submitted before"):
        engine.submit(once)
    run(engine, request("a"))


def test_two_engines_coexist(make_engine: MakeEngine, make_model: MakeModel) -> None:
    expected = tokens(run(make_engine(), request("a"))["a"]), tokens(run(make_engine("gemma2"), request("a"))["a"])
    engines = make_engine(), make_engine("gemma2")
    found: list[list[int | None]] = [[], []]
    for engine in engines:
        engine.submit(request("a"))
    while any(engine.has_work for engine in engines):
        for engine, generated in zip(engines, found, strict=True):
            generated += tokens(engine.step())
    assert tuple(found) == expected


def test_stats_count(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.submit(request("a", tuple(range(20)), max_tokens=3))
    engine.step()
    stats = engine.stats()
    assert (stats.blocks_used, stats.blocks_total, stats.running, stats.waiting) == (4, 64, 1, 0)
    assert (stats.iterations, stats.prompt_tokens, stats.output_tokens, stats.batched_tokens) == (1, 16, 0, 16)
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    assert (stats.iterations, stats.prompt_tokens, stats.output_tokens) == (4, 20, 3)


def test_load_from_a_directory(saved_llama: Path, device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    config = EngineConfig(str(saved_llama), device=device.type, kv_cache_memory=1 << 20)  # type: ignore[arg-type]
    engine = OrcaEngine.load(config)
    assert engine.eos_token_ids == {5}
    assert engine.limits.vocab_size == 96
    assert engine.limits.max_model_len == 128
    assert engine.device.type == device.type
    assert len(run(engine, request("a", ignore_eos=True))["a"]) == 8
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision(dtype: Any, saved_llama: Path, device: torch.device) -> None:
    config = EngineConfig(
        str(saved_llama),
        device=device.type,  # type: ignore[arg-type]
        dtype=dtype,
        kv_cache_memory=1 << 20,
    )
    engine = OrcaEngine.load(config)
    assert len(run(engine, request("a", ignore_eos=True), request("b", tuple(range(40)), ignore_eos=True))["b"]) == 8


def test_a_callback_before_each_forward_pass(make_engine: MakeEngine) -> None:
    engine = make_engine()
    iterations: list[int] = []
    engine.call_before_forward(lambda: iterations.append(engine.stats().iterations))
    run(engine, request("a", max_tokens=3))
    assert iterations == [0, 1, 2]
