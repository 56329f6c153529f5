"""What a worker's settings allow."""

import pytest
from pydantic import ValidationError

from engine import EngineConfig
from worker.settings import WorkerSettings


def test_a_batch_larger_than_the_token_budget_is_refused_as_by_the_engine() -> None:
    with pytest.raises(ValueError, match="max_batch_size: got 9, allowed: at most max_num_batched_tokens") as caught:
        EngineConfig("x", max_batch_size=9, max_num_batched_tokens=8)
    with pytest.raises(ValidationError) as refused:
        WorkerSettings(max_batch_size=9, max_num_batched_tokens=8, _env_file=None)  # type: ignore[call-arg]
    assert str(caught.value) in str(refused.value)
    WorkerSettings(max_batch_size=8, max_num_batched_tokens=8, _env_file=None)  # type: ignore[call-arg]
