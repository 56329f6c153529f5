"""Requests that have ended leave nothing in memory."""

import gc
from weakref import WeakSet

import pytest

from orcastream.engine import Request
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, run


class Watched(Request):
    """A request that weak references can watch."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_only_the_record_of_the_last_iteration_keeps_ended_requests(policy: str, make_engine: MakeEngine) -> None:
    engine = make_engine(policy=policy, max_batch_size=8)
    requests = [
        Watched(f"{index}", (1, 2, 3), SamplingParams(max_tokens=1 + index % 7, temperature=0)) for index in range(40)
    ]
    alive = WeakSet(requests)
    run(engine, *requests)
    requests.clear()
    gc.collect()
    assert engine.last_iteration is not None
    assert set(alive) == set(engine.last_iteration.requests)
