"""The engine as its users see it: submit, step, cancel, and what happens when something fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine import EngineConfig, OrcaEngine, Request, RequestState, TokenEvent
from schemas.errors import InvalidRequest
from schemas.sampling import SamplingParams
from schemas.stopping import FinishReason

MakeEngine = Callable[..., OrcaEngine]
MakeModel = Callable[..., PreTrainedModel]


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), outputs: tuple[int, ...] = (), **params: Any) -> Request:
    return Request(name, prompt, SamplingParams(**{"temperature": 0, "max_tokens": 8, **params}), output_ids=outputs)


def run(engine: OrcaEngine, *requests: Request) -> dict[str, list[TokenEvent]]:
    """Submit all at once; the events per request."""
    events: dict[str, list[TokenEvent]] = {each.id: [] for each in requests}
    for each in requests:
        engine.submit(each)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
    assert engine.stats().blocks_used == 0
    return events


def tokens(events: list[TokenEvent]) -> list[int | None]:
    return [event.token for event in events]


def crowd(count: int = 6, **params: Any) -> list[Request]:
    """Requests of different lengths with sampling settings of their own."""
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 5, "seed": 4},
        {"temperature": 0},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 2},
        {"temperature": 2.0, "top_k": 50, "top_p": 0.99},
    ]
    return [
        request(f"crowd-{index}", tuple(range(1, 4 + 5 * index)), max_tokens=12, **settings[index % 6], **params)
        for index in range(count)
    ]


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


def test_eos_and_stop_tokens_are_emitted_and_end_it(make_engine: MakeEngine, make_model: MakeModel) -> None:
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
def test_min_tokens_bars_eos_and_stop_tokens_until_then(
    temperature: float, make_engine: MakeEngine, make_model: MakeModel
) -> None:
    """Every token but one would end it."""
    engine = make_engine(make_model("llama", eos_token_id=[9, 10]))
    stops = tuple(token for token in range(96) if token not in (9, 10, 50))[:64]
    asked = request("a", temperature=temperature, stop_token_ids=stops, min_tokens=6, max_tokens=20)
    generated = tokens(run(engine, asked)["a"])
    assert len(generated) >= 6
    assert not set(generated[:6]) & {*stops, 9, 10}


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
def test_a_continuation_goes_on_as_if_undisturbed(cut: int, make_engine: MakeEngine) -> None:
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


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (lambda: request("a", ()), "prompt"),
        (lambda: request("a", (1, 96)), "prompt.1"),
        (lambda: request("a", (1, -1)), "prompt.1"),
        (lambda: request("a", (1,), (96,)), "output_ids.0"),
        (lambda: request("a", stop_token_ids=(96,)), "stop_token_ids.0"),
        (lambda: request("a", tuple(range(64))), "prompt"),
        (lambda: request("a", max_tokens=62), "max_tokens"),
        (lambda: request("a", max_tokens=None, min_tokens=62), "min_tokens"),
        (lambda: request("a", outputs=(1,) * 8), "output_ids"),
        (lambda: request("a", outputs=(1, 7), stop_token_ids=(7,)), "output_ids"),
        (lambda: request("busy"), "id"),
    ],
)
def test_what_can_never_be_computed_is_refused_at_submit(
    bad: Callable[[], Request], field: str, make_engine: MakeEngine
) -> None:
    engine = make_engine(num_blocks=16)
    engine.submit(request("busy"))
    with pytest.raises(InvalidRequest) as caught:
        engine.submit(bad())
    assert caught.value.field == field
    assert engine.num_waiting == 1
    engine.check_integrity()


def test_max_tokens_is_what_the_context_or_the_cache_leaves(make_engine: MakeEngine) -> None:
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


def test_cancel_in_every_state(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch_size=2, max_num_batched_tokens=8)
    decoding, prefilling, waiting = request("d"), request("p", tuple(range(30))), request("w")
    engine.submit(decoding)
    engine.step()
    engine.submit(prefilling)
    engine.submit(waiting)
    engine.step()
    states = [RequestState.INCREMENT, RequestState.INITIATION, RequestState.WAITING]
    assert [each.state for each in (decoding, prefilling, waiting)] == states
    for name in ("d", "p", "w"):
        assert engine.cancel(name)
        engine.check_integrity()
        assert not engine.cancel(name)
    assert engine.step() == []
    assert engine.stats().blocks_used == 0
    assert decoding.timeline.finished_s is not None


def test_cancelling_one_leaves_the_others_alone(make_engine: MakeEngine) -> None:
    expected = run(make_engine(), *crowd())
    engine = make_engine()
    for each in crowd():
        engine.submit(each)
    events: dict[str, list[TokenEvent]] = {}
    for step in range(60):
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
        if step == 3:
            assert engine.cancel("crowd-2")
            del events["crowd-2"]
        engine.check_integrity()
    assert {name: tokens(each) for name, each in events.items()} == {
        name: tokens(each) for name, each in expected.items() if name != "crowd-2"
    }


POISON = 77


def poison(model: PreTrainedModel) -> None:
    """Let every forward pass that holds the token fail."""

    def fail(module: Any, args: Any, kwargs: Any) -> None:
        if bool((kwargs["input_ids"] == POISON).any()):
            raise RuntimeError("poisoned")

    model.register_forward_pre_hook(fail, with_kwargs=True)


@pytest.mark.parametrize("where", [0, 20])
def test_a_poisonous_request_ends_alone(where: int, make_engine: MakeEngine, make_model: MakeModel) -> None:
    expected = run(make_engine(num_blocks=256, max_num_batched_tokens=24), *crowd(stop_token_ids=(POISON,)))
    model = make_model()
    poison(model)
    engine = make_engine(model, num_blocks=256, max_num_batched_tokens=24)
    prompt = tuple(POISON if index == where else 4 for index in range(30))
    everyone = [*crowd(stop_token_ids=(POISON,)), request("poison", prompt)]
    for each in everyone:
        engine.submit(each)
    events: dict[str, list[TokenEvent]] = {each.id: [] for each in everyone}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
    (failure,) = events.pop("poison")
    assert failure.token is None
    assert failure.finish_reason is None
    assert "poisoned" in (failure.error or "")
    assert {name: tokens(each) for name, each in events.items()} == {
        name: tokens(each) for name, each in expected.items()
    }
    assert engine.stats().blocks_used == 0


def test_two_poisonous_requests_both_end(make_engine: MakeEngine, make_model: MakeModel) -> None:
    model = make_model()
    poison(model)
    events = run(make_engine(model), request("a", (POISON,)), request("b", (POISON, 1)))
    assert all(len(each) == 1 and each[0].error for each in events.values())


def test_logits_that_are_not_numbers_end_their_request_alone(make_engine: MakeEngine, make_model: MakeModel) -> None:
    expected = run(make_engine(), *crowd(2, stop_token_ids=(POISON,)))
    model = make_model()

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill((args[0] == POISON).unsqueeze(-1), torch.nan)

    model.get_input_embeddings().register_forward_hook(spoil)
    events = run(make_engine(model), *crowd(2, stop_token_ids=(POISON,)), request("poison", (1, POISON, 1)))
    (failure,) = events.pop("poison")
    assert "finite" in (failure.error or "")
    assert {name: tokens(each) for name, each in events.items()} == {
        name: tokens(each) for name, each in expected.items()
    }


def test_what_a_spoilt_request_left_in_the_cache_harms_nobody(make_engine: MakeEngine, make_model: MakeModel) -> None:
    model = make_model()

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill((args[0] == POISON).unsqueeze(-1), torch.nan)

    model.get_input_embeddings().register_forward_hook(spoil)
    engine = make_engine(model, num_blocks=12)
    run(engine, request("poison", (POISON,) * 40))
    after = run(engine, *crowd(2, stop_token_ids=(POISON,)))
    assert {name: tokens(each) for name, each in after.items()} == {
        name: tokens(each) for name, each in run(make_engine(), *crowd(2, stop_token_ids=(POISON,))).items()
    }


def test_two_engines_live_side_by_side(make_engine: MakeEngine, make_model: MakeModel) -> None:
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
