"""Seeds are part of the contract: any worker, in any version, must derive the same ones."""

from hypothesis import given
from hypothesis import strategies as st

from orcastream.schemas.limits import MAX_CHOICES, MAX_SEED, MIN_SEED
from orcastream.schemas.seed import choice_seed, derived_seed


def test_known_values() -> None:
    assert derived_seed("example-1") == 3_623_119_480_030_757_845
    assert choice_seed(42, 1) == 1_984_979_838_283_651_376
    assert choice_seed(-42, 1) == 7_169_583_309_371_293_250


@given(st.text(), st.integers(MIN_SEED, MAX_SEED))
def test_seeds_are_valid_and_distinct(request_id: str, seed: int) -> None:
    assert 0 <= derived_seed(request_id) <= MAX_SEED
    seeds = [choice_seed(seed, choice) for choice in range(MAX_CHOICES)]
    assert seeds[0] == seed
    assert len(set(seeds)) == MAX_CHOICES
    assert all(0 <= each <= MAX_SEED for each in seeds[1:])
