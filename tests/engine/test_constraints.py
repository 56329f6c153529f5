"""Constrained outputs in the engine: whatever happens to a request, it draws the same tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from orcastream.engine import Beam, OrcaEngine, Request
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason
from tests.engine.conftest import VOCAB_SIZE
from tests.engine.running import run, tokens

EOS = 5


class Climbing:
    """Tokens climb by one to three, from ten on; after `length` of them only EOS is allowed. Fails after `breaks`."""

    def __init__(self, length: int = 20, breaks: int = 99) -> None:
        self.seen: list[int] = []
        self.length = length
        self.breaks = breaks

    def consume(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            assert token in self.allowed()
            self.seen.append(token)

    def fill(self, mask: Any) -> None:
        if len(self.seen) == self.breaks:
            raise ValueError("the state has grown too large")
        bits = np.zeros(len(mask) * 8, dtype=np.uint8)
        bits[self.allowed()] = 1
        mask[:] = np.packbits(bits, bitorder="little")

    def allowed(self) -> list[int]:
        last = self.seen[-1] if self.seen else 9
        return [EOS] if len(self.seen) == self.length else [last + 1, last + 2, last + 3]


def climbing(name: str, *, outputs: tuple[int, ...] = (), breaks: int = 99, **params: Any) -> Request:
    settings = SamplingParams(**{"temperature": 1.0, "max_tokens": 40, **params})
    return Request(name, (1, 2, 3), settings, output_ids=outputs, seed=11, matcher=Climbing(breaks=breaks))


@pytest.fixture
def engine(make_engine: Callable[..., OrcaEngine], make_model: Callable[..., Any]) -> OrcaEngine:
    return make_engine(make_model(eos_token_id=EOS))


def follows(ids: list[int | None]) -> bool:
    steps = [b - a for a, b in zip([9, *ids], ids[:-1], strict=False) if a is not None and b is not None]
    return len(ids) == 21 and ids[-1] == EOS and set(steps) <= {1, 2, 3}


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 2, "logprobs": 1}, {"top_p": 0.5}], ids=str)
def test_outputs_follow_the_constraint_and_end_where_allowed(engine: OrcaEngine, params: dict[str, Any]) -> None:
    events = run(engine, climbing("a", **params))["a"]
    assert follows(tokens(events))
    assert events[-1].finish_reason is FinishReason.STOP


def test_unconstrained_requests_draw_as_without_the_others(engine: OrcaEngine) -> None:
    def plain() -> list[Request]:
        return [
            Request("greedy", (4, 5, 6), SamplingParams(temperature=0, max_tokens=15, ignore_eos=True)),
            Request("drawn", (6, 7), SamplingParams(max_tokens=15, ignore_eos=True, seed=3)),
        ]

    alone = run(engine, *plain())
    together = run(engine, climbing("a"), *plain(), climbing("b", temperature=0))
    assert {name: tokens(together[name]) for name in alone} == {name: tokens(events) for name, events in alone.items()}
    assert follows(tokens(together["a"]))
    assert follows(tokens(together["b"]))


def test_max_tokens_cuts_a_constrained_output(engine: OrcaEngine) -> None:
    events = run(engine, climbing("a", max_tokens=7))["a"]
    assert len(events) == 7
    assert events[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("known", [1, 9, 20])
def test_earlier_outputs_are_consumed_first(engine: OrcaEngine, known: int) -> None:
    whole = tokens(run(engine, climbing("a"))["a"])
    rest = run(engine, climbing("b", outputs=tuple(whole[:known])))["b"]
    assert tokens(rest) == whole[known:]


@pytest.mark.parametrize("settings", [{}, {"preemption": "swap", "host_cache_memory": 1 << 20}], ids=["again", "swap"])
def test_preempted_requests_continue_as_if_undisturbed(
    make_engine: Callable[..., OrcaEngine], make_model: Callable[..., Any], settings: dict[str, Any]
) -> None:
    model = make_model(eos_token_id=EOS)
    whole = tokens(run(make_engine(model), climbing("a"))["a"])
    narrow = make_engine(model, num_blocks=12, **settings)
    events = run(narrow, *(climbing(name) for name in "abcd"))
    assert narrow.stats().preemptions > 0
    assert [tokens(each) for each in events.values()] == [whole] * 4


def test_planning_ahead_changes_nothing(make_engine: Callable[..., OrcaEngine], make_model: Callable[..., Any]) -> None:
    model = make_model(eos_token_id=EOS)
    found = [tokens(run(make_engine(model, overlap=overlap), climbing("a"))["a"]) for overlap in ("off", "on")]
    assert found[0] == found[1]


def test_choices_of_one_prompt_follow_independently(engine: OrcaEngine) -> None:
    choices = [climbing(name) for name in "abc"]
    for seed, each in enumerate(choices):
        each.seed, each.group = seed, "g"
    events = run(engine, *choices)
    assert all(follows(tokens(each)) for each in events.values())
    assert len({tuple(tokens(each)) for each in events.values()}) == 3


def test_a_request_whose_constraint_fails_ends_alone(engine: OrcaEngine) -> None:
    events = run(engine, climbing("a", breaks=4), climbing("b"))
    assert [event.error for event in events["a"][:-1]] == [None] * 4
    assert events["a"][-1].error == "the constraint failed on this request: the state has grown too large"
    assert follows(tokens(events["b"]))


def test_a_failed_constraint_leaves_shared_prefixes_usable(engine: OrcaEngine) -> None:
    long = Request("a", tuple(range(10, 50)), SamplingParams(temperature=0, max_tokens=2))
    run(engine, long, climbing("b", breaks=0))
    again = Request("c", long.prompt_ids, long.sampling)
    run(engine, again)
    assert again.cached_tokens == 39


def test_earlier_outputs_that_violate_the_constraint_end_the_request(engine: OrcaEngine) -> None:
    (event,) = run(engine, climbing("a", outputs=(50,)))["a"]
    assert event.error is not None


def test_settings_that_forbid_the_end_are_refused(engine: OrcaEngine, make_engine: Callable[..., OrcaEngine]) -> None:
    for params, field in (({"ignore_eos": True}, "ignore_eos"), ({"min_tokens": 3}, "min_tokens")):
        with pytest.raises(InvalidRequest) as caught:
            engine.submit(climbing("a", **params))
        assert caught.value.field == field
    beam = Request("b", (1,), SamplingParams(temperature=0), beam=Beam(2), matcher=Climbing())
    with pytest.raises(InvalidRequest, match="beam"):
        engine.submit(beam)
    with pytest.raises(InvalidRequest, match="allowed: none: this model has no end-of-sequence token") as caught:
        make_engine().submit(climbing("c"))
    assert caught.value.field == "matcher"
    assert VOCAB_SIZE > 9 + 3 * 20
