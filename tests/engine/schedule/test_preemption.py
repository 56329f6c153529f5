"""Recompute or swap: measurements decide."""

import pytest

from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.sequence import Sequence
from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.preemption import PreemptionChoice
from orcastream.engine.schedule.timing import IterationTimes
from tests.engine.schedule.machine import Machine
from tests.engine.schedule.pretended import request


def running(blocks: int) -> Request:
    made = request(4)
    made.state, made.num_computed = RequestState.INCREMENT, 16 * blocks
    made.kv = Sequence(0, 1, ContentChain("", ""))
    made.kv.blocks = [list(range(blocks))]
    return made


def taught() -> IterationTimes:
    times, machine = IterationTimes(), Machine()
    for _ in range(200):
        times.observe(machine.any_iteration())
    return times


@pytest.mark.parametrize(("kind", "swaps"), [("recompute", False), ("swap", True)])
def test_the_configured_kind(kind: str, swaps: bool) -> None:
    assert PreemptionChoice(kind).prefers_swap(running(4)) is swaps


def test_the_first_copies_are_measured() -> None:
    choice = PreemptionChoice("auto", taught())
    for _ in range(3):
        assert choice.prefers_swap(running(10))
        choice.copied_out(10, 100.0)
        assert choice.prefers_swap(running(10))
        choice.copied_back(10, 100.0)
    assert not choice.prefers_swap(running(10))


def test_without_a_measured_prefill_blocks_are_swapped() -> None:
    choice = PreemptionChoice("auto", IterationTimes())
    for _ in range(5):
        choice.copied_out(10, 100.0), choice.copied_back(10, 100.0)
    assert choice.prefers_swap(running(10))


def test_the_cheaper_way_is_taken() -> None:
    times = taught()
    recompute_s = times.prefill_s(160)
    assert recompute_s is not None
    for factor, swaps in ((0.9, True), (1.1, False)):
        choice = PreemptionChoice("auto", times)
        for _ in range(3):
            choice.copied_out(10, recompute_s * factor / 2), choice.copied_back(10, recompute_s * factor / 2)
        choice.copied_out(10, 1e6)  # one hiccup
        assert choice.prefers_swap(running(10)) is swaps


def test_the_costs_are_remeasured_occasionally() -> None:
    choice = PreemptionChoice("auto", taught())
    for _ in range(9):
        choice.copied_out(1, 100.0), choice.copied_back(1, 100.0)
    assert sum(choice.prefers_swap(running(10)) for _ in range(64)) == 4
    for _ in range(9):
        choice.copied_out(1, 1e-9), choice.copied_back(1, 1e-9)
    assert choice.prefers_swap(running(10))
