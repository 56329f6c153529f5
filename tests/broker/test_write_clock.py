"""The time spent in writes, which may overlap."""

from orcastream.broker.write_clock import WriteClock


def test_writes_that_overlap_count_once() -> None:
    clock = WriteClock()
    clock.begin()
    clock.begin()
    clock.end()
    assert clock.busy_s == 0  # one is still in flight
    clock.end()
    first_s = clock.busy_s
    assert first_s > 0
    clock.begin()
    assert clock.busy_s == first_s
    clock.end()
    assert clock.busy_s > first_s
