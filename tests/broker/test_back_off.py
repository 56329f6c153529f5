"""Waiting after failures."""

from orcastream.broker.back_off import BackOff


def test_waits_grow_to_a_bound_and_reset_after_a_success() -> None:
    back_off = BackOff(0.1, 1.0)
    bounds = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert all(bound / 2 <= back_off.failed() <= bound for bound in bounds)
    back_off.succeeded()
    assert back_off.failed() <= 0.1


def test_waits_are_jittered() -> None:
    assert len({BackOff().failed() for _ in range(10)}) > 1


def test_what_broke_soon_after_it_was_opened_is_no_success() -> None:
    back_off = BackOff(0.1, 1.0)
    for _ in range(5):
        back_off.failed()
        back_off.held(0.9)
    assert back_off.failed() >= 0.5
    back_off.held(1.1)
    assert back_off.failed() <= 0.1
