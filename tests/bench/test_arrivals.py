"""Arrivals follow the requested rate and the seed."""

import random
import statistics
from itertools import islice, pairwise

import pytest

from orcastream.bench.arrivals import RateProfile, gamma, poisson


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_process() -> None:
    arrivals = list(poisson(50, 400, random.Random(1)))
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert len(arrivals) == pytest.approx(50 * 400, rel=0.03)
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.03), "exponential: as wide as its mean"
    assert 0 < arrivals[0] < arrivals[-1] < 400


def test_a_seed_gives_the_same_arrivals_again() -> None:
    first, second, other = (list(poisson(3, 20, random.Random(seed))) for seed in (7, 7, 8))
    assert first == second != other


def test_arrivals_without_an_end() -> None:
    assert len(list(islice(poisson(1, float("inf"), random.Random(0)), 1000))) == 1000


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="rate: got"):
        next(poisson(rate, 10, random.Random(0)))


def test_a_profile_is_followed_segment_by_segment() -> None:
    profile = RateProfile.parse("0:10,100:10,200:50,300:0")
    arrivals = list(profile.arrivals(random.Random(2)))
    counts = [sum(begin <= at < begin + 100 for at in arrivals) for begin in (0, 100, 200)]
    assert counts == pytest.approx([1000, 3000, 2500], rel=0.1)
    assert [profile.rate_at(at) for at in (0, 150, 250, 300, -1)] == [10, 30, 25, 0, 0]
    assert str(profile) == "0:10,100:10,200:50,300:0"


@pytest.mark.parametrize(
    "text",
    ["", "0:1", "0:1,x:2", "1:1,2:1", "0:1,0:2", "0:0,9:0", "0:-1,5:3", "0", "0:nan,9:1", "0:1,inf:1", "0:1,9:inf"],
)
def test_an_invalid_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="profile: got"):
        RateProfile.parse(text)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_bursts_keep_the_rate_and_change_the_spread(burstiness: float) -> None:
    times = list(islice(gamma(5.0, float("inf"), burstiness, random.Random(1)), 20_000))
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    variation = statistics.stdev(gaps) / statistics.mean(gaps)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_burstiness_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="burstiness: got 0"):
        next(gamma(1.0, 1.0, 0.0, random.Random(1)))
