"""How decode spans are grouped for computation."""

import pytest

from orcastream.engine.attention.torch_plan import padded_runs


@pytest.mark.parametrize(
    ("contexts", "runs"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([9000, 9000, 10], [(0, 2), (2, 3)]),
        ([100, 90, 10, 1], [(0, 4)]),
        ([20_000, 100, 90, 80], [(0, 1), (1, 4)]),
    ],
)
def test_runs_bound_the_padding(contexts: list[int], runs: list[tuple[int, int]]) -> None:
    assert padded_runs(contexts) == runs
