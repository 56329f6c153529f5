"""Token budgets: fixed, and adaptive to a target for the time between tokens."""

import statistics
from typing import Any

import pytest

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.budget import AdaptiveBudget, TokenBudget
from orcastream.engine.schedule.timing import IterationTimes
from tests.engine.schedule.machine import Machine
from tests.engine.schedule.pretended import add, compute, make, request

MOST, BLOCK = 512, 16


def running(decodes: int, context: int = 200, **fields: Any) -> list[Request]:
    """Return this number of decoding requests, and one in the middle of its prefill."""
    made = [request(4, **fields) for _ in range(decodes)]
    for each in made:
        each.state, each.num_computed = RequestState.INCREMENT, context
    prefilling = request(4)
    prefilling.state, prefilling.num_computed = RequestState.INITIATION, 1000
    return [*made, prefilling]


def served(machine: Machine, budget: AdaptiveBudget, times: IterationTimes, rounds: int, **fields: Any) -> list[float]:
    """Return the expected seconds of `rounds` iterations of 16 decodes and an endless prefill, sized by the budget."""
    batch, seconds = running(16, **fields), []
    for _ in range(rounds):
        prefill = (budget.tokens(batch) - 16) // BLOCK * BLOCK
        context = 16 * 200 + 1000 + prefill
        times.observe(machine.run(16, prefill, context, prefill * (1000 + prefill)))
        times.observe(machine.run(16, 0, 16 * 200))
        seconds.append(machine.expected_s(16, prefill, context, prefill * (1000 + prefill)))
    return seconds


def adaptive(target_ms: float | None = None) -> tuple[AdaptiveBudget, IterationTimes]:
    times = IterationTimes()
    return AdaptiveBudget(MOST, block_size=BLOCK, times=times, target_ms=target_ms), times


def test_a_fixed_budget_is_constant() -> None:
    assert TokenBudget(7).tokens(running(3, tbt_slo_ms=0.001)) == 7


def test_without_a_target_or_decodes_the_budget_is_the_maximum() -> None:
    budget, times = adaptive()
    times.observe(Machine().run(4, 512, 1000, 1000))
    assert budget.tokens(running(4)) == MOST
    assert budget.tokens(running(0, tbt_slo_ms=1)) == MOST
    assert adaptive(1.0)[0].tokens(running(4)) == MOST, "nothing is known yet"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hiccups", [0.0, 0.02])
def test_the_budget_meets_the_target_and_uses_it(seed: int, hiccups: float) -> None:
    budget, times = adaptive(30.0)
    late = served(Machine(seed, hiccups=hiccups), budget, times, 300)[100:]
    within = sum(seconds <= 0.030 * 1.05 for seconds in late) / len(late)
    assert within >= 0.95
    assert statistics.median(late) > 0.030 * 0.7


def test_the_budget_adapts_to_a_machine_that_gets_slower_and_faster() -> None:
    machine = Machine(7)
    budget, times = adaptive(40.0)
    served(machine, budget, times, 200)
    for speed in (2.0, 0.5):
        machine.speed = speed
        late = served(machine, budget, times, 300)[150:]
        assert max(late) <= 0.040 * 1.2
        assert statistics.median(late) > 0.040 * 0.6


def test_the_tightest_running_target_counts() -> None:
    budget, times = adaptive(1000.0)
    machine = Machine(3)
    for _ in range(200):
        times.observe(machine.any_iteration())
    batch = running(16)
    whole = budget.tokens(batch)
    batch[3].tbt_slo_ms = 60.0
    loose = budget.tokens(batch)
    batch[5].tbt_slo_ms = 20.0
    assert whole == MOST
    assert MOST > loose > budget.tokens(batch) > 16 + BLOCK
    batch[5].state = RequestState.INITIATION
    assert budget.tokens(batch) > budget.tokens([*batch[:5], *batch[6:], *running(1, tbt_slo_ms=20.0)])


def test_prefills_never_stall_and_decodes_are_never_left_out() -> None:
    scheduler = make(num_blocks=60, budget=32, token_budget="adaptive", tbt_target_ms=0.001)
    decoding = [add(scheduler, 4, 30) for _ in range(2)]
    compute(scheduler, scheduler.select(), seconds=0.1)
    long = add(scheduler, 60, 2)
    while long.num_outputs == 0:
        plan = scheduler.select()
        assert plan.requests[:2] == decoding
        assert 4 <= plan.prefill_tokens <= 8
        compute(scheduler, plan, seconds=0.1)
