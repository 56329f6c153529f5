"""A plan counts its tokens by kind."""

import pytest

from orcastream.engine.schedule.plan import Plan, chunk_length
from tests.engine.schedule.pretended import add, make, request, step


def test_tokens_by_kind() -> None:
    plan = Plan([request(2), request(9), request(5)], [1, 8, 5], 1)
    assert (len(plan), plan.num_tokens, plan.prefill_tokens) == (3, 14, 13)
    assert not Plan()


def test_one_request_alone() -> None:
    decoding, prefilling = request(2), request(9)
    plan = Plan([decoding, prefilling], [1, 8], 1)
    assert plan.only(0) == Plan([decoding], [1], 1)
    assert plan.only(1) == Plan([prefilling], [8], 0)


def test_a_request_preempted_after_planning_leaves_the_plan() -> None:
    scheduler = make(num_blocks=30, budget=64)
    decoding, other = add(scheduler, 5), add(scheduler, 5)
    step(scheduler)
    prefilling = add(scheduler, 9)
    plan = scheduler.select()
    assert (plan.requests, plan.lengths, plan.num_decodes) == ([decoding, other, prefilling], [1, 1, 9], 2)
    scheduler._preemptor.preempt(other, scheduler.policy)
    assert plan.drop_preempted() == 1
    assert (plan.requests, plan.lengths, plan.num_decodes) == ([decoding, prefilling], [1, 9], 1)
    assert plan.drop_preempted() == 0


@pytest.mark.parametrize(
    ("left", "alone", "length"), [(20, False, 18), (17, False, 16), (3, False, 0), (3, True, 3), (-1, True, 0)]
)
def test_a_chunk_ends_with_a_block_unless_nothing_else_would_be_computed(left: int, alone: bool, length: int) -> None:
    assert chunk_length(request(18), left, 4, alone=alone) == length
