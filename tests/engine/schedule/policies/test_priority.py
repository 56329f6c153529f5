"""Priority classes with aging, against their rule said plainly."""

from typing import Any

import pytest
from hypothesis import given

from engine.request import Request
from schemas.keys import CLASSES
from tests.engine.schedule.policies.rig import AGING_S, MOVES, Rig, agree, play
from tests.engine.schedule.pretended import add, drain, make, step


def aged(each: Request) -> float:
    return (each.timeline.submitted_s or 0) + AGING_S * CLASSES.index(each.priority_class)


def leaves(rig: Rig, waiting: Request) -> Request | None:
    worse = [each for each in rig.running if aged(each) - aged(waiting) >= AGING_S]
    if waiting.priority_class != "realtime":
        return None
    return max(worse, key=lambda each: (aged(each), each.arrival), default=None)


def look(rig: Rig) -> None:
    agree(rig, aged)
    head = rig.policy.head()
    if head is not None:
        assert rig.policy.makes_way(head, rig.running) is leaves(rig, head)


@given(MOVES)
def test_class_and_age_decide(moves: list[Any]) -> None:
    play("priority", moves, look)


def test_nothing_starves_under_a_stream_of_realtime_requests() -> None:
    rig = Rig("priority")
    low = rig.arrive(0.0, priority_class="low")
    for second in range(1, 100):
        rig.arrive(float(second), priority_class="realtime")
        if rig.join() is low:
            assert second >= 3 * AGING_S
            break
        rig.finish(rig.running[0])
    assert low in rig.running
    assert second <= 3 * AGING_S + 1


def test_realtime_takes_the_place_of_low_and_low_comes_back() -> None:
    scheduler = make("priority", num_blocks=30, batch=2, budget=16)
    high, low = add(scheduler, 4, 6, priority_class="high"), add(scheduler, 4, 6, priority_class="low")
    step(scheduler)
    realtime = add(scheduler, 4, 6, priority_class="realtime")
    assert step(scheduler) == {high.id: 1, realtime.id: 4}
    assert low.id in scheduler.requests.waiting
    drain(scheduler)
    assert low.num_outputs == 6
    assert scheduler.preemptions == 1


@pytest.mark.parametrize("waiting", ["high", "normal"])
def test_nobody_else_makes_anybody_leave(waiting: str) -> None:
    scheduler = make("priority", num_blocks=30, batch=1)
    add(scheduler, 4, 6, priority_class="low")
    step(scheduler)
    add(scheduler, 4, 6, priority_class=waiting)
    drain(scheduler)
    assert scheduler.preemptions == 0


def test_who_has_aged_by_its_class_is_not_pushed_out() -> None:
    scheduler = make("priority", num_blocks=30, batch=1)
    low = add(scheduler, 4, 6, priority_class="low")
    low.timeline.submitted_s -= 30.5  # type: ignore[operator]
    step(scheduler)
    add(scheduler, 4, 6, priority_class="realtime")
    drain(scheduler)
    assert scheduler.preemptions == 0
