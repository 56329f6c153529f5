"""Priority classes that accumulate priority at different speeds, against a plain statement of the rule."""

import time
from typing import Any

import pytest
from hypothesis import given

from orcastream.engine.request import Request
from orcastream.schemas.keys import CLASSES
from tests.engine.schedule.policies.rig import MOVES, Rig, play
from tests.engine.schedule.pretended import add, drain, make, step

NOW_S = 2000.0
"""After everything that the moves make arrive."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


def accumulated(each: Request, now_s: float = NOW_S) -> float:
    below = len(CLASSES) - 1 - CLASSES.index(each.priority_class)
    return (now_s - (each.timeline.submitted_s or 0)) * 4**below


def least(requests: list[Request]) -> Request | None:
    return min(requests, key=lambda each: (accumulated(each), -each.arrival), default=None)


def look(rig: Rig) -> None:
    most_first = sorted(rig.running, key=lambda each: (-accumulated(each), each.arrival))
    assert list(rig.policy.order(rig.running)) == most_first
    head = rig.policy.head()
    assert head is min(rig.waiting, key=lambda each: (-accumulated(each), each.arrival), default=None)
    if head is None:
        return
    assert all(rig.policy.precedes(head, each) is (accumulated(head) > accumulated(each)) for each in rig.running)
    victim = least([each for each in rig.running if each.priority_class != "realtime"])
    if head.priority_class != "realtime" or victim is None or accumulated(victim) >= max(accumulated(head), 64):
        victim = None
    assert rig.policy.makes_way(head, rig.running) is victim


@given(MOVES)
def test_age_and_class_decide(moves: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: NOW_S)
        play("priority", moves, look)


def test_the_wait_in_the_queue_before_counts(clock: list[float]) -> None:
    rig = Rig("priority")
    rig.arrive(1.0)
    waited = rig.arrive(2.0, waited_s=1.5)
    clock[0] = 3.0
    assert rig.policy.head() is waited


def test_nothing_starves_under_a_stream_of_realtime_requests(clock: list[float]) -> None:
    rig = Rig("priority")
    low = rig.arrive(0.0, priority_class="low")
    for second in range(1, 200):
        clock[0] = second + 0.5
        rig.arrive(float(second), priority_class="realtime")
        if rig.join() is low:
            break
        rig.finish(rig.running[0])
    assert low in rig.running
    assert second == 32  # the request that arrived half a second ago ages 64 times as fast


def test_an_overtaken_prefill_does_not_starve_either(clock: list[float]) -> None:
    """As many realtime prompts as fit the budget, and a long one of class low."""
    scheduler = make("priority", num_blocks=400, batch=8, prefix_cache=False)
    low = add(scheduler, 40, 1, priority_class="low")
    steps = []
    while low.finish_reason is None:
        clock[0] += 0.1
        add(scheduler, 8, 1, priority_class="realtime")
        steps.append(low.id in step(scheduler))
        assert len(steps) < 1000
    assert sum(steps) == 5
    assert sum(steps[:20]) == 1  # at first a request that has waited for one iteration overtakes it
    drain(scheduler)


def test_overload_keeps_the_ratio_of_waits_at_any_queue_length(clock: list[float]) -> None:
    rig = Rig("priority")
    waits: dict[str, list[float]] = {"realtime": [], "normal": []}
    for second in range(2000):  # one is served for every two that arrive
        clock[0] = float(second)
        rig.arrive(clock[0], priority_class="realtime" if second % 4 == 0 else "normal")
        rig.arrive(clock[0], priority_class="normal")
        served = rig.join()
        waits[served.priority_class].append(clock[0] - (served.timeline.submitted_s or 0))
        rig.finish(served)
    late = {name: sorted(each[len(each) // 2 :]) for name, each in waits.items()}
    p99 = {name: each[int(0.99 * len(each))] for name, each in late.items()}
    assert 0 < p99["realtime"] <= p99["normal"] / 5


def test_realtime_preempts_low_and_low_resumes() -> None:
    scheduler = make("priority", num_blocks=30, batch=2, budget=16)
    high, low = add(scheduler, 4, 6, priority_class="high"), add(scheduler, 4, 6, priority_class="low")
    high.timeline.submitted_s -= 60  # type: ignore[operator]
    step(scheduler)
    realtime = add(scheduler, 4, 6, priority_class="realtime")
    assert step(scheduler) == {high.id: 1, realtime.id: 4}
    assert low.id in scheduler.requests.waiting
    drain(scheduler)
    assert low.num_outputs == 6
    assert scheduler.preemptions == 1


def test_a_preempted_request_does_not_resume_before_its_preemptor(clock: list[float]) -> None:
    scheduler = make("priority", num_blocks=30, batch=1)
    low = add(scheduler, 4, 6, priority_class="low")
    step(scheduler)
    clock[0] = 30.0  # it has accumulated more than the new arrival now, and less than the new arrival after a second
    urgent = add(scheduler, 4, 2, priority_class="realtime")
    assert step(scheduler) == {urgent.id: 4}
    drain(scheduler)
    assert len(low.timeline.preempted_s) == 1


@pytest.mark.parametrize("waiting", ["high", "normal"])
def test_no_other_class_preempts(waiting: str) -> None:
    scheduler = make("priority", num_blocks=30, batch=1)
    add(scheduler, 4, 6, priority_class="low")
    step(scheduler)
    add(scheduler, 4, 6, priority_class=waiting)
    drain(scheduler)
    assert scheduler.preemptions == 0


def test_a_request_that_has_waited_long_is_not_preempted() -> None:
    scheduler = make("priority", num_blocks=30, batch=1)
    low = add(scheduler, 4, 6, priority_class="low")
    low.timeline.submitted_s -= 65  # type: ignore[operator]
    step(scheduler)
    add(scheduler, 4, 6, priority_class="realtime")
    drain(scheduler)
    assert scheduler.preemptions == 0
