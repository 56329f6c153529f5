"""The configuration selects the scheduler's parts."""

import pytest

from orcastream.engine.schedule.budget import AdaptiveBudget, TokenBudget
from orcastream.engine.schedule.memory import Reserve
from orcastream.engine.schedule.policies import POLICIES
from tests.engine.schedule.pretended import make


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_by_name(name: str) -> None:
    policy = make(name).policy
    assert type(policy) is POLICIES[name]
    assert policy.name == name


def test_the_promised_policies_exist() -> None:
    assert set(POLICIES) >= {"fcfs", "priority", "slo", "sjf", "fair", "static"}


def test_the_other_names() -> None:
    policy = make(admission="reserve", preemption="swap", class_weight=3.0).policy
    assert isinstance(policy.memory, Reserve)
    assert type(policy.budget) is TokenBudget
    assert (policy.preemption.kind, policy.class_weight) == ("swap", 3.0)


def test_an_adaptive_budget_learns_from_the_policys_events() -> None:
    policy = make(token_budget="adaptive", tbt_target_ms=7.0).policy
    assert isinstance(policy.budget, AdaptiveBudget)
    assert policy.budget._times is policy.times
    assert policy.preemption._times is policy.times
