"""What the timing model learns about a synthetic machine with known times."""

import pytest

from orcastream.engine.schedule.timing import IterationTimes
from tests.engine.schedule.machine import Machine

CASES = [(0, 512, 512, 512 * 512), (16, 0, 4000, 0), (16, 256, 8000, 256 * 4000), (31, 64, 3000, 64 * 1000)]


def errors(times: IterationTimes, machine: Machine) -> list[float]:
    """Return the relative errors of its predictions."""
    return [times.iteration_s(*case) / machine.expected_s(*case) - 1 for case in CASES]


def taught(machine: Machine, iterations: int, times: IterationTimes | None = None) -> IterationTimes:
    times = times or IterationTimes()
    for _ in range(iterations):
        times.observe(machine.any_iteration())
    return times


def test_nothing_is_known_before_the_first() -> None:
    times = IterationTimes()
    assert times.iteration_s(3, 4, 5) == 0
    assert times.prefill_s(100) is None
    assert times.prefill_within(0.05, 3, 100, 0) is None


@pytest.mark.parametrize("seed", range(5))
def test_predictions_converge_on_a_noisy_machine(seed: int) -> None:
    machine = Machine(seed)
    assert max(map(abs, errors(taught(machine, 300), machine))) < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_hiccups_change_little(seed: int) -> None:
    machine = Machine(seed, hiccups=0.02)
    assert max(map(abs, errors(taught(machine, 400), machine))) < 0.2


@pytest.mark.parametrize("speed", [1e-3, 1e3])
def test_one_outlier_changes_nothing(speed: float) -> None:
    machine = Machine(6)
    times = taught(machine, 300)
    machine.speed = speed
    times.observe(machine.any_iteration())
    machine.speed = 1
    assert max(map(abs, errors(times, machine))) < 0.15


@pytest.mark.parametrize("speed", [0.4, 3.0])
def test_predictions_follow_a_machine_that_changes(speed: float) -> None:
    machine = Machine(1)
    times = taught(machine, 300)
    machine.speed = speed
    assert max(map(abs, errors(taught(machine, 300, times), machine))) < 0.12


def test_a_first_outlier_is_forgotten() -> None:
    machine, times = Machine(2), IterationTimes()
    machine.speed = 100
    times.observe(machine.any_iteration())
    machine.speed = 1
    assert max(map(abs, errors(taught(machine, 400, times), machine))) < 0.15


def test_no_cause_has_a_negative_cost() -> None:
    machine, times = Machine(3, noise=0.6), IterationTimes()
    for _ in range(300):
        times.observe(machine.any_iteration())
        assert min(times._x) >= 0


def test_the_time_of_a_prefill_grows_with_the_square_of_its_length() -> None:
    machine = Machine(4)
    times = taught(machine, 300)
    for tokens in (256, 2048, 4096):
        expected = (machine.prefill + machine.context) * tokens + machine.pair * tokens * tokens / 2
        assert times.prefill_s(tokens) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("start", [0, 3000])
def test_the_largest_prefill_within_a_time(start: int) -> None:
    machine = Machine(5)
    times = taught(machine, 300)
    for target_s in (0.02, 0.05, 0.1):
        tokens = times.prefill_within(target_s, 16, 4000, start)
        assert tokens is not None
        margin = 1 + times.deviation
        predicted = times.iteration_s(16, tokens, 4000 + start + tokens, tokens * (start + tokens))
        assert predicted * margin <= target_s * 1.001
        more = tokens + 2
        assert times.iteration_s(16, more, 4000 + start + more, more * (start + more)) * margin > target_s
    assert times.prefill_within(0.001, 16, 4000, 0) == 0


@pytest.mark.parametrize("pair", [0.0, 1e-9])
@pytest.mark.parametrize("seconds", [1e303, 1e305, float("inf")])
def test_an_endless_time_bounds_no_prefill(seconds: float, pair: float) -> None:
    times = IterationTimes()
    times._x = [0.0, 0.0, 1e-7, 0.0, pair]
    most = times.prefill_within(seconds, 1, 100, 0)
    assert most is None or most > 1e100


@pytest.mark.parametrize("pair", [1e-18, 1e-22, 1e-26, 1e-300])
def test_a_negligible_cost_per_pair_bounds_no_prefill(pair: float) -> None:
    times = IterationTimes()
    times._x = [0.0, 0.0, 1e-4, 0.0, pair]
    assert times.prefill_within(0.05, 1, 0, 0) == pytest.approx(500, abs=1)
