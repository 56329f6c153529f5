"""Least slack first, against a plain statement of its rule."""

import time
from typing import Any

import pytest
from hypothesis import given

from orcastream.engine.request import Request, RequestState
from tests.engine.schedule.policies.rig import MOVES, Rig, agree, play
from tests.engine.schedule.pretended import add, compute, drain, make, step

PATIENCE_S, MARGIN_S = 40.0, 10.0


def latest_start(each: Request) -> float:
    return (each.timeline.submitted_s or 0) + min((each.ttft_slo_ms or 1e9) / 1000, PATIENCE_S)


def paced(each: Request) -> bool:
    return each.state is RequestState.INCREMENT and each.tbt_slo_ms is not None


def rank(each: Request) -> Any:
    return (0, each.tbt_slo_ms, each.arrival) if paced(each) else (1, latest_start(each), each.arrival)


def look_at(now_s: list[float]) -> Any:
    def look(rig: Rig) -> None:
        agree(rig, latest_start, rank)
        head = rig.policy.head()
        if head is None:
            return
        now_s[0] = max(now_s[0], head.timeline.submitted_s or 0)
        target = head.ttft_slo_ms
        begun = head.timeline.first_token_s is not None
        at_risk = target is not None and not begun and latest_start(head) - now_s[0] <= target / 10_000
        last = max(rig.running, key=rank, default=None)
        leaves = (
            at_risk and last is not None and not paced(last) and latest_start(last) - latest_start(head) >= MARGIN_S
        )
        assert rig.policy.makes_way(head, rig.running) is (last if leaves else None)

    return look


@given(MOVES)
def test_slack_decides(moves: list[Any]) -> None:
    now_s = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now_s[0])
        play("slo", moves, look_at(now_s))


def test_a_long_prefill_is_begun_earlier_once_its_time_is_known() -> None:
    scheduler = make("slo", num_blocks=60, budget=64, batch=1, prefix_cache=False)
    for tokens in (10, 20, 30, 40, 50, 60) * 4:
        add(scheduler, tokens, 1)
        compute(scheduler, scheduler.select(), seconds=tokens / 10)
    short = add(scheduler, 4, 2, ttft_slo_ms=8_000)
    long = add(scheduler, 60, 2, ttft_slo_ms=10_000)
    assert step(scheduler) == {long.id: 60}
    assert short.id in scheduler.requests.waiting
    drain(scheduler)


def test_nothing_starves_without_a_target() -> None:
    rig = Rig("slo")
    patient = rig.arrive(0.0)
    for second in range(1, 100):
        rig.arrive(float(second), ttft_slo_ms=1000)
        if rig.join() is patient:
            break
        rig.finish(rig.running[0])
    assert second == pytest.approx(PATIENCE_S, abs=1)


def test_the_state_of_a_request_is_dropped_with_it() -> None:
    rig = Rig("slo")
    for _ in range(3):
        rig.arrive(0.0)
    rig.join()
    for each in [*rig.running, *rig.waiting]:
        rig.finish(each)
    assert rig.policy._latest == {}  # type: ignore[attr-defined]
