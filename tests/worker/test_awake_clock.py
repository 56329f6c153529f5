"""A stopped process does not count the time that it slept."""

from orcastream.worker.awake_clock import AwakeClock


def test_frequent_reads_count_all_time() -> None:
    times = iter([100.0, 100.5, 101.5, 102.5])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock() for _ in range(3)] == [0.5, 1.5, 2.5]


def test_a_gap_counts_up_to_its_bound_only() -> None:
    times = iter([100.0, 100.5, 400.0, 400.25])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock() for _ in range(3)] == [0.5, 1.5, 1.75]
