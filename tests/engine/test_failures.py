"""Cancels and failures: the affected request ends alone, and the others are unaffected."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import RequestState, TokenEvent
from tests.engine.running import MakeEngine, MakeModel, crowd, request, run, tokens


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
    """Make every forward pass that contains the token fail."""

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


def test_nan_logits_end_only_their_request(make_engine: MakeEngine, make_model: MakeModel) -> None:
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


def test_cache_blocks_of_a_failed_request_harm_no_other(make_engine: MakeEngine, make_model: MakeModel) -> None:
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
