"""No policy, kind of preemption or token budget changes a token."""

from typing import Any

import pytest

from orcastream.engine import Request
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.keys import CLASSES
from tests.engine.running import MakeEngine, crowd, run, tokens

_TIGHT: dict[str, Any] = {"num_blocks": 14, "max_batch_size": 4, "max_num_batched_tokens": 12}


def mixed() -> list[Request]:
    """Return requests of all classes and two tenants, some with targets."""
    requests = crowd(8)
    for index, each in enumerate(requests):
        each.priority_class = CLASSES[-1 - index % 4]
        each.tenant = "ab"[index // 6]
        each.ttft_slo_ms = None if index % 3 else 1.0
        each.tbt_slo_ms = None if index % 2 else 1.0
    return requests


@pytest.fixture(scope="module")
def undisturbed(make_engine: MakeEngine) -> dict[str, list[int | None]]:
    """Return each request's tokens with batch slots and memory for all."""
    events = run(make_engine(num_blocks=200, max_batch_size=8, max_num_batched_tokens=256), *mixed())
    return {name: tokens(of) for name, of in events.items()}


@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_tokens(
    policy: str, preemption: str, make_engine: MakeEngine, undisturbed: dict[str, list[int | None]]
) -> None:
    engine = make_engine(
        policy=policy,
        preemption=preemption,
        host_cache_memory=1 << 20,
        token_budget="adaptive" if preemption == "auto" else "fixed",
        **_TIGHT,
    )
    events = run(engine, *mixed())
    assert {name: tokens(of) for name, of in events.items()} == undisturbed
    stats = engine.stats()
    assert (stats.preemptions > 0) == (policy != "static")
    assert stats.swaps <= stats.preemptions
    assert (stats.swaps > 0) == (policy != "static" and preemption != "recompute")


def test_policies_switched_between_engines_continue_each_others_requests(
    make_engine: MakeEngine, undisturbed: dict[str, list[int | None]]
) -> None:
    """A takeover: the outputs so far are handed to an engine with another policy."""
    engine = make_engine(policy="priority", preemption="swap", host_cache_memory=1 << 20, **_TIGHT)
    requests = mixed()
    for each in requests:
        engine.submit(each)
    for _ in range(9):
        engine.step()
    left = [each for each in requests if each.finish_reason is None]
    assert len(left) > 0
    taken = mixed()
    again = [other for each in left for other in taken if other.id == each.id]
    for each, other in zip(left, again, strict=True):
        other.output_ids = list(each.output_ids)
        other.tokens += each.output_ids
    run(make_engine(policy="fair", preemption="auto", host_cache_memory=1 << 20, **_TIGHT), *again)
    for each in [*again, *(each for each in requests if each not in left)]:
        assert list(each.output_ids) == undisturbed[each.id]
