"""top_k, top_p and min_p against a reference that does one row at a time in plain Python."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.sampling import filters
from engine.sampling.filters import filtered


def reference(scores: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that are kept, straight from the definitions."""
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = order[:top_k] if top_k else order
    weights = [math.exp(scores[token] - scores[order[0]]) for token in order]
    total = sum(weights)
    kept: list[int] = []
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if top_p < 1 and mass >= top_p - 1e-6:
            break
        kept.append(token)
        mass += weight / total
    return {token for token, weight in zip(order, weights, strict=True) if token in kept and weight >= min_p - 1e-6}


def kept(scores: torch.Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> list[set[int]]:
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in filtered(scores, top_k, top_p, min_p)]


settings_of_a_row = st.tuples(
    st.sampled_from([0, 1, 2, 5, 39, 40, 1000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(settings_of_a_row, min_size=1, max_size=6), seed=st.integers(0, 1000), spread=st.floats(0.2, 6))
def test_rows_with_different_settings(rows: list[tuple[int, float, float]], seed: int, spread: float) -> None:
    scores = torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(seed)) * spread
    top_k, top_p, min_p = (list(values) for values in zip(*rows, strict=True))
    found = kept(scores, top_k, top_p, min_p)
    assert found == [reference(row.tolist(), *setting) for row, setting in zip(scores, rows, strict=True)]


@pytest.mark.parametrize("spread", [0.01, 1.0, 20.0])
def test_a_nucleus_beyond_the_first_look(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_FIRST_LOOK", 4)
    scores = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) * spread
    found = kept(scores, [0, 0, 100], [0.95, 0.3, 0.6], [0.0] * 3)
    expected = [
        reference(row.tolist(), *setting, 0.0)
        for row, setting in zip(scores, [(0, 0.95), (0, 0.3), (100, 0.6)], strict=True)
    ]
    assert found == expected


def test_of_equal_scores_the_first_are_kept() -> None:
    assert kept(torch.zeros(2, 10), [3, 0], [1.0, 0.35], [0.0, 0.0]) == [{0, 1, 2}, {0, 1, 2, 3}]
    assert kept(torch.tensor([[1.0, 5.0, 5.0, 0.0, 5.0]]), [2], [1.0], [0.0]) == [{1, 2}]


def test_round_shares_reach_their_bound() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert kept(scores, [0], [0.5], [0.0]) == [{0}]
    assert kept(scores, [0], [0.8], [0.0]) == [{0, 1}]
    assert kept(scores, [0], [1.0], [0.6]) == [{0, 1}]
    assert kept(scores, [0], [1e-9], [0.0]) == [{0}]


def test_without_filters_nothing_changes() -> None:
    scores = torch.randn(2, 10)
    assert filtered(scores, [0, 10], [1.0, 1.0], [0.0, 0.0]) is scores
    assert filtered(scores, [0, 99], [1.0, 1.0], [0.0, 0.0]) is scores


def test_banned_tokens_stay_banned() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    assert kept(scores, [3], [1.0], [0.0]) == [{0, 2}]
    assert kept(scores, [0], [0.99], [0.0]) == [{0, 2}]
