"""The values that a worker's settings allow."""

import pytest
from pydantic import ValidationError

from orcastream.engine import EngineConfig
from tests.worker.own_settings import own_settings


def test_a_batch_larger_than_the_token_budget_is_refused_as_in_the_engine() -> None:
    with pytest.raises(ValueError, match="max_batch_size: got 9, allowed: at most max_num_batched_tokens") as caught:
        EngineConfig("x", max_batch_size=9, max_num_batched_tokens=8)
    with pytest.raises(ValidationError) as refused:
        own_settings(max_batch_size=9, max_num_batched_tokens=8)
    assert str(caught.value) in str(refused.value)
    own_settings(max_batch_size=8, max_num_batched_tokens=8)


@pytest.mark.parametrize(
    ("policy", "given", "most"), [("fcfs", None, 0), ("static", None, 32), ("fair", None, 77), ("fair", 3, 3)]
)
def test_a_worker_holds_as_many_waiting_requests_as_its_policy_considers(
    policy: str, given: int | None, most: int
) -> None:
    settings = own_settings(policy=policy, max_waiting=given, max_queue_depth=77)
    assert settings.most_waiting(policy, 32) == most
