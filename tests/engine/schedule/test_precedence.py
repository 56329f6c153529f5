"""The policy's first request goes first although a prefill could take the whole budget of each iteration."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.schemas.keys import CLASSES
from tests.engine.schedule.pretended import BLOCK_SIZE, add, compute, drain, make, step

PATIENT: dict[str, Any] = {"priority_class": "low", "tenant": "heavy"}
URGENT: dict[str, Any] = {"priority_class": "realtime", "tenant": "light", "ttft_slo_ms": 1000.0, "waited_s": 1.0}


def begin(policy: str, **settings: Any) -> tuple[Scheduler, Request, Request]:
    """One request decodes, and the prompt of another takes the rest of the budget."""
    scheduler = make(policy, budget=9, **{"num_blocks": 100, **settings})
    decoding = add(scheduler, 3, 30, name="decoding", **PATIENT)
    long = add(scheduler, 84, 2, name="long", **PATIENT)
    assert step(scheduler) == {"decoding": 3, "long": 4}
    assert step(scheduler) == {"decoding": 1, "long": 8}
    return scheduler, decoding, long


@pytest.mark.parametrize("policy", ["fair", "priority", "sjf", "slo"])
def test_the_first_request_is_computed_before_the_prefill_continues(policy: str) -> None:
    scheduler, _, _ = begin(policy)
    add(scheduler, 6, 2, name="urgent", **URGENT)
    assert step(scheduler) == {"decoding": 1, "urgent": 6}
    assert step(scheduler) == {"decoding": 1, "urgent": 1, "long": 4}
    assert step(scheduler) == {"decoding": 1, "long": 8}
    assert sum(lengths.get("long", 0) for lengths in drain(scheduler)) == 84 - 24 + 1
    assert scheduler.preemptions == 0


@pytest.mark.parametrize("policy", ["fcfs", "static"])
def test_if_arrivals_decide_the_prefill_continues(policy: str) -> None:
    scheduler, _, long = begin(policy)
    add(scheduler, 6, 2, name="urgent", **URGENT)
    while long.state is RequestState.INITIATION:
        assert step(scheduler) == {"decoding": 1, "long": 8}
    drain(scheduler)


@pytest.mark.parametrize("lacking", [{"batch": 2}, {"num_blocks": 23}], ids=["place", "memory"])
def test_without_a_batch_slot_or_memory_it_waits(lacking: dict[str, int]) -> None:
    scheduler, _, _ = begin("sjf", **lacking)
    urgent = add(scheduler, 6, 2, name="urgent", **URGENT)
    assert step(scheduler) == {"decoding": 1, "long": 8}
    assert urgent.state is RequestState.WAITING
    assert scheduler.preemptions == 0


def test_it_takes_its_turn_among_several_prefills() -> None:
    scheduler = make("sjf", num_blocks=100)
    for name, prompt in (("long", 84), ("short", 40), ("middle", 60)):
        add(scheduler, prompt, name=name)
        assert step(scheduler) == {"long" if name == "long" else "short": 8}
    assert [step(scheduler) for _ in range(4)] == [{"short": 8}] * 3 + [{"short": 1, "middle": 4}]
    drain(scheduler)


def test_a_request_that_awaits_the_prefill_is_not_overtaken_with_it() -> None:
    scheduler = make("sjf", num_blocks=100)
    add(scheduler, tuple(range(84)), name="long")
    step(scheduler)
    add(scheduler, (*range(40), 1000, 1001), name="same")
    add(scheduler, 45, name="behind")
    assert [step(scheduler) for _ in range(4)] == [{"long": 8}] * 4
    assert step(scheduler) == {"same": 2, "behind": 4}
    drain(scheduler)


def test_no_request_is_preempted_for_one_that_awaits_a_prefill() -> None:
    scheduler = make("priority", num_blocks=100, batch=2, budget=9)
    add(scheduler, 3, 30, name="decoding", **PATIENT)
    long = add(scheduler, tuple(range(84)), 2, name="long", **PATIENT)
    step(scheduler)
    long.timeline.submitted_s -= 30  # type: ignore[operator]
    add(scheduler, (*range(36), 1000), 2, name="urgent", **{**URGENT, "tenant": "heavy"})
    while long.num_computed < 36:
        assert step(scheduler) == {"decoding": 1, "long": 8}
    assert scheduler.preemptions == 0
    assert step(scheduler) == {"urgent": 1, "long": 8}
    assert scheduler.preemptions == 1
    drain(scheduler)


def test_a_request_without_rows_for_its_prompt_does_not_block_later_ones() -> None:
    scheduler = make("priority", num_blocks=2000, budget=1024, max_model_len=4000)
    add(scheduler, 1500, 1, name="rows", prompt_logprobs=0, **{**URGENT, "waited_s": 2.0})
    add(scheduler, 3000, 1, name="long", **PATIENT)
    assert step(scheduler) == {"rows": 512, "long": 512}
    add(scheduler, 20, 1, name="asking", prompt_logprobs=0, **URGENT)
    add(scheduler, 30, 1, name="plain", **URGENT)
    assert step(scheduler) == {"rows": 512, "plain": 30, "long": 480}
    assert step(scheduler) == {"rows": 476, "asking": 20, "long": 528}
    drain(scheduler)


def test_the_next_iteration_waits_for_the_token_of_a_preempted_request() -> None:
    scheduler, decoding, long = begin("priority", batch=2)
    long.timeline.submitted_s -= 30  # type: ignore[operator]
    for each, length in zip((plan := scheduler.select()).requests, plan.lengths, strict=True):
        each.launch(length)
    assert scheduler.can_plan_ahead()
    add(scheduler, 6, 2, name="urgent", **URGENT)
    assert scheduler.select().requests == [decoding, long]
    assert not scheduler.can_plan_ahead()


class Clock:
    """A clock that returns one moment for all reads of an iteration."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.fixed_dictionaries(
            {
                "prompt": st.integers(1, 60),
                "max_tokens": st.integers(1, 4),
                "priority_class": st.sampled_from(CLASSES),
                "ttft_slo_ms": st.sampled_from([None, 50.0, 500.0, 5000.0]),
            }
        ),
    ),
    min_size=2,
    max_size=12,
)


@given(st.sampled_from(["priority", "sjf", "slo"]), ARRIVALS)
def test_prompts_share_the_budget_in_the_order_of_the_policy(policy: str, arrivals: list[Any]) -> None:
    """With batch slots and memory for all, a request that must stop leaves less than a block to later ones."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        scheduler = make(policy, num_blocks=400, batch=16, budget=16, prefix_cache=False)
        for pause, fields in arrivals:
            for _ in range(pause):
                iterate(scheduler, clock)
            add(scheduler, **fields)
        while len(scheduler.requests):
            iterate(scheduler, clock)
    assert scheduler.preemptions == 0


def iterate(scheduler: Scheduler, clock: Clock) -> None:
    clock.now_s += 0.05
    requests = scheduler.requests
    everyone = [*requests.waiting.values(), *requests.running]
    prompts = [each for each in everyone if each.state is not RequestState.INCREMENT]
    plan = scheduler.select()
    scheduler.check_integrity()
    lengths = {each.id: length for each, length in zip(plan.requests, plan.lengths, strict=True)}
    stopped = False
    for each in scheduler.policy.order(prompts):
        length = lengths.get(each.id, 0)
        assert not stopped or length < BLOCK_SIZE
        stopped |= length < each.num_uncomputed
    compute(scheduler, plan)
