"""What a stopped process slept through is not counted."""

from orcastream.worker.awake_clock import AwakeClock


def test_who_asks_often_enough_sees_all_time_pass() -> None:
    times = iter([100.0, 100.5, 101.5, 102.5])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock() for _ in range(3)] == [0.5, 1.5, 2.5]


def test_of_a_gap_nothing_beyond_its_bound_is_counted() -> None:
    times = iter([100.0, 100.5, 400.0, 400.25])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock() for _ in range(3)] == [0.5, 1.5, 1.75]
