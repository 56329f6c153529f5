"""Some requests run alone while all others pause, and no answer changes."""

from typing import Any

import pytest

from orcastream.engine import Request
from orcastream.engine.beam import Beam
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, crowd, request, run, tokens

PROMPT = tuple(range(2, 30))


def suspects(kind: str) -> list[Request]:
    if kind == "beams":
        return [Request("alone", PROMPT, SamplingParams(temperature=0, max_tokens=6), beam=Beam(3, 2))]
    if kind == "choices":
        sampling = SamplingParams(temperature=1.0, max_tokens=6)
        return [Request(f"alone-{index}", PROMPT, sampling, seed=index, group="g") for index in range(3)]
    return [request("alone", PROMPT, max_tokens=6)]


@pytest.mark.parametrize("kind", ["one", "choices", "beams"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"overlap": "on"},
        {"max_num_batched_tokens": 8},
        {"num_blocks": 32},
        {"max_batch_size": 4},
        {"policy": "static"},
        {"admission": "reserve"},
    ],
    ids=str,
)
def test_the_others_pause(settings: dict[str, Any], kind: str, make_engine: MakeEngine) -> None:
    expected = run(make_engine(num_blocks=256), *crowd()) | run(make_engine(num_blocks=256), *suspects(kind))
    engine = make_engine(**{"num_blocks": 256, **settings})
    found: dict[str, list[Any]] = {name: [] for name in expected}

    def step() -> None:
        for event in engine.step():
            found[event.request_id].append(event)
        engine.check_integrity()

    for each in crowd():
        engine.submit(each)
    for _ in range(4):
        step()
    chosen = suspects(kind)
    for each in chosen:
        engine.submit(each)
    engine.isolate([each.id for each in chosen])
    step()  # the iteration in flight
    while not all(each.finish_reason for each in chosen):
        before = {name: len(events) for name, events in found.items() if name.startswith("crowd")}
        step()
        assert before == {name: len(found[name]) for name in before}
        assert engine.last_iteration is not None
        assert all(name.startswith("alone") for name in engine.last_iteration.request_ids)
    while engine.has_work:
        step()
    assert {name: tokens(events) for name, events in found.items()} == {
        name: tokens(events) for name, events in expected.items()
    }


def test_all_continue_afterwards(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for each in (request("a"), request("b")):
        engine.submit(each)
    engine.isolate(["a"])
    assert [event.request_id for event in engine.step()] == ["a"]
    engine.isolate([])
    assert {event.request_id for event in engine.step()} == {"a", "b"}
    engine.isolate(["gone"])
    assert {event.request_id for event in engine.step()} == {"a", "b"}
