"""Wide rows are cut where sorting all of them would cut them."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.sampling import cut as module
from engine.sampling import filters
from engine.sampling.filters import filtered

_DOUBT = 3e-7
"""Sums of float32 weights are right up to this share of the total."""


def check(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> None:
    """What is kept is the start of the row in order, and ends where a sum in double precision says."""
    scores = scores - scores.max()
    kept = filtered(scores.unsqueeze(0), [top_k], [top_p], [min_p])[0]
    assert torch.equal(kept[kept > -torch.inf], scores[kept > -torch.inf])
    row = scores.double().numpy()
    order = np.lexsort((np.arange(len(row)), -row))
    order = order[row[order] > -np.inf][: top_k or None]
    weights = np.exp(row[order] - row[order[0]])
    before = (weights.cumsum() - weights) / weights.sum()
    fewest, most = (
        int(((before < top_p - 1e-6 + doubt) | (top_p == 1)).sum()) if top_p < 1 else len(order)
        for doubt in (-_DOUBT, _DOUBT)
    )
    likely = [int((weights >= min_p * (1 - 1e-6 + doubt)).sum()) for doubt in (_DOUBT, -_DOUBT)]
    count = int((kept > -torch.inf).sum())
    assert set(np.flatnonzero(kept.numpy() > -np.inf)) == set(order[:count])
    assert max(1, min(fewest, likely[0])) <= count <= max(1, min(most, likely[1]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, 63, 511, 5000, 8193, 20_011, 151_936]),
    spread=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 4.0, 30.0, 1e4]),
    coarse=st.booleans(),
    masked=st.booleans(),
    top_k=st.sampled_from([0, 0, 0, 1, 40, 1000, 7000, 10**6]),
    top_p=st.sampled_from([1.0, 1 - 1e-8, 0.999, 0.95, 0.9, 0.5, 1e-3]),
    min_p=st.sampled_from([0.0, 0.0, 1e-4, 0.1, 1.0]),
)
def test_like_sorting_the_whole_row(
    seed: int, vocab: int, spread: float, coarse: bool, masked: bool, top_k: int, top_p: float, min_p: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(vocab, generator=generator) * spread
    if coarse:
        scores = scores.bfloat16().float()
    if masked and vocab > 1:
        scores[torch.rand(vocab, generator=generator) < 0.9] = -torch.inf
        scores[vocab // 2] = 0.0
    check(scores, top_k, top_p, min_p)


@pytest.mark.parametrize("order", ["rising", "falling", "blocks"])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99])
def test_rows_that_a_sample_misjudges(order: str, top_p: float) -> None:
    scores = torch.linspace(-3, 0, 30_000)
    if order == "falling":
        scores = scores.flip(0)
    elif order == "blocks":
        scores = torch.where(torch.arange(30_000) % 7 == 0, -0.5, -6.0)
        scores[12_345] = 0.0
    check(scores, 0, top_p, 0.0)


def test_a_wrong_guess_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEVIATIONS", -50.0)
    for seed in range(5):
        check(torch.randn(20_000, generator=torch.Generator().manual_seed(seed)), 0, 0.9, 0.0)


def test_any_offset_will_do() -> None:
    scores = torch.randn(1, 10_000, generator=torch.Generator().manual_seed(0))
    kept, moved = (filtered(each, [0], [0.9], [0.0]) for each in (scores, scores + 500))
    assert torch.equal(kept[kept.isfinite()], scores[kept.isfinite()])
    assert torch.equal(moved[moved.isfinite()], (scores + 500)[moved.isfinite()])
    assert abs(int(kept.isfinite().sum()) - int(moved.isfinite().sum())) <= 10


def test_wide_and_narrow_rows_are_filtered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(6, 10_000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    setting = [0, 50, 0, 900, 0, 7], [0.9, 1.0, 0.5, 0.9, 1.0, 0.2], [0.0, 0.0, 0.02, 0.0, 0.1, 0.0]
    wide = filtered(scores, *setting)
    monkeypatch.setattr(filters, "_NARROW", 10_000)
    assert torch.equal(filtered(scores, *setting).isfinite(), wide.isfinite())
