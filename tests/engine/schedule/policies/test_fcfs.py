"""First come, first served, against a plain statement of its rule."""

from typing import Any

from hypothesis import given

from tests.engine.schedule.policies.rig import MOVES, agree, play
from tests.engine.schedule.pretended import add, drain, make, step


@given(MOVES)
def test_only_arrival_decides(moves: list[Any]) -> None:
    play("fcfs", moves, lambda rig: agree(rig, lambda each: 0))


def test_reserve_holds_the_line() -> None:
    scheduler = make(admission="reserve", num_blocks=10, budget=64)
    add(scheduler, 8, 20, name="large")
    add(scheduler, 8, 24, name="larger")
    add(scheduler, 1, 1, name="small")
    assert step(scheduler) == {"large": 8}
    assert set(scheduler.requests.waiting) == {"larger", "small"}
    drain(scheduler)


def test_paged_admits_what_reserve_does_not() -> None:
    scheduler = make(admission="paged", num_blocks=10, budget=64)
    add(scheduler, 8, 20, name="large")
    add(scheduler, 8, 24, name="larger")
    assert step(scheduler) == {"large": 8, "larger": 8}
    drain(scheduler)
