"""top_k, top_p and min_p against a reference, evaluated for one token and for all."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orcastream.engine.sampling import nucleus as module
from orcastream.engine.sampling.filters import Filters
from orcastream.engine.sampling.weights import Weights

_DOUBT = 5e-7
"""Sums of float32 weights are right up to this share of the total."""
_ALIVE = -79.0
"""What scores less has the weight of this."""


def weighed(scores: torch.Tensor, *filters: Filters) -> Weights:
    weights = Weights(len(scores), scores.shape[1], scores.device)
    weights.fill(scores, filters)
    return weights


def weights_of(weights: Weights, vocab: int) -> npt.NDArray[np.float32]:
    """Return the weights after all dropped tokens have been found."""
    rows = len(weights.tiles)
    weights.restrict(range(rows))
    found: npt.NDArray[np.float32] = weights.tiles.reshape(rows, -1)[:, :vocab].cpu().numpy()
    assert torch.allclose(weights.sums, weights.tiles.sum(-1))
    return found


def kept(scores: torch.Tensor, *filters: Filters) -> list[set[int]]:
    found = weights_of(weighed(scores, *filters), scores.shape[1])
    return [set(np.flatnonzero(row > math.exp(_ALIVE)).tolist()) for row in found]


def reference(scores: list[float], filters: Filters) -> set[int]:
    """Return the kept tokens, directly from the definitions."""
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = order[: filters.top_k] if filters.top_k else order
    weights = [math.exp(scores[token] - scores[order[0]]) for token in order]
    total = sum(weights)
    kept: set[int] = set()
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if filters.top_p < 1 and mass >= filters.top_p - 1e-6:
            break
        if weight >= filters.min_p - 1e-6:
            kept.add(token)
        mass += weight / total
    return kept


filters_of_a_row = st.builds(
    Filters,
    temperature=st.just(1.0),
    top_k=st.sampled_from([0, 1, 2, 5, 39, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(filters_of_a_row, min_size=1, max_size=6), seed=st.integers(0, 1000), spread=st.floats(0.2, 6))
def test_rows_with_different_filters(rows: list[Filters], seed: int, spread: float) -> None:
    scores = torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(seed)) * spread
    assert kept(scores, *rows) == [reference(row.tolist(), each) for row, each in zip(scores, rows, strict=True)]


def check(scores: torch.Tensor, filters: Filters) -> None:
    """Check that the kept tokens are the start of the sorted row, and end where a sum in double precision does."""
    vocab = len(scores)
    weights = weighed(scores.unsqueeze(0), filters)
    row = (scores - scores.max()).double().numpy()
    order = np.lexsort((np.arange(vocab), -row))
    order = order[: filters.top_k or None]
    order = order[row[order] > _ALIVE]
    shares = np.exp(row[order])
    before = (shares.cumsum() - shares) / shares.sum()
    bounds = [filters.top_p - 1e-6 + doubt if filters.top_p < 1 else 2.0 for doubt in (-_DOUBT, _DOUBT)]
    fewest, most = (int((before < bound).sum()) for bound in bounds)
    fewest, most = (
        max(1, min(count, int((shares >= filters.min_p * (1 - 1e-6 - doubt)).sum())))
        for count, doubt in ((fewest, -_DOUBT), (most, _DOUBT))
    )
    asked = [each for each in {0, 1, fewest // 2, fewest - 1, most, most + 1, len(order) - 1} if 0 <= each < len(order)]
    if filters.min_p == 0 and vocab > 8192:
        tokens = torch.from_numpy(order[asked])
        dropped = {asked[place] for place in weights.dropped([0] * len(asked), tokens)}
        assert {each for each in asked if each >= most} <= dropped <= {each for each in asked if each >= fewest}
    found = weights_of(weights, vocab)[0]
    alive = set(np.flatnonzero((found > 0) & (row > _ALIVE)))
    assert alive == set(order[: len(alive)])
    assert fewest <= len(alive) <= most
    assert np.allclose(found[order[: len(alive)]], shares[: len(alive)], rtol=2e-5)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, 63, 511, 5000, 8193, 20_011, 151_936]),
    spread=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 4.0, 30.0, 1e4]),
    coarse=st.booleans(),
    masked=st.booleans(),
    top_k=st.sampled_from([0, 0, 0, 1, 40, 1000, 7000, 10**6]),
    top_p=st.sampled_from([1.0, 1 - 1e-8, 0.999, 0.95, 0.9, 0.5, 1e-3, 1e-9]),
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
    check(scores, Filters(1.0, top_k, top_p, min_p))


@pytest.mark.parametrize("vocab", [10_000, 20])
def test_among_equal_scores_the_first_are_kept(vocab: int) -> None:
    scores = torch.full((1, vocab), -torch.inf)
    scores[0, 3:13] = 1.0
    assert kept(scores, Filters(top_k=3)) == [{3, 4, 5}]
    assert kept(scores, Filters(top_p=0.35)) == [{3, 4, 5, 6}]
    assert kept(scores, Filters(top_k=5, top_p=0.35)) == [{3, 4}]
    if vocab > 8192:
        weights = weighed(scores, Filters(top_p=0.35))
        assert weights.dropped([0] * 10, torch.arange(3, 13)) == [4, 5, 6, 7, 8, 9]


def test_every_token_of_a_wide_row_is_dropped_or_kept() -> None:
    """With thousands of ties, evaluating tokens one by one or all at once gives the same result."""
    scores = (torch.randn(1, 9000, generator=torch.Generator().manual_seed(0)) * 0.1).bfloat16().float()
    for top_p in (0.1, 0.5, 0.93):
        weights = weighed(scores, Filters(top_p=top_p))
        dropped = set(weights.dropped([0] * 9000, torch.arange(9000)))
        found = set(np.flatnonzero(weights_of(weights, 9000)[0] == 0))
        assert len(dropped ^ found) <= 1


def test_rows_on_an_accelerator_are_evaluated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = (torch.randn(3, 9000, generator=torch.Generator().manual_seed(0)) * 2).bfloat16().float()
    filters = [Filters(top_p=0.9), Filters(top_k=400), Filters(top_k=700, top_p=0.5)]
    tokens = torch.arange(9000)
    rows = [weighed(scores[place : place + 1], each) for place, each in enumerate(filters)]
    alone = [set(row.dropped([0] * 9000, tokens)) for row in rows]
    monkeypatch.setattr("orcastream.engine.sampling.weights.one_by_one", lambda like: False)
    monkeypatch.setattr(module, "one_by_one", lambda like: False)
    together = weighed(scores, *filters)
    assert torch.equal(together.tiles > 0, torch.cat([row.tiles for row in rows]) > 0)
    for place, expected in enumerate(alone):
        had = together.tiles[place].reshape(-1)[:9000] > 0
        found = set(together.dropped([place] * 9000, tokens))
        assert len({token for token in found ^ expected if had[token]}) <= 1


def test_round_shares_reach_their_bound() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert kept(scores, Filters(top_p=0.5)) == [{0}]
    assert kept(scores, Filters(top_p=0.8)) == [{0, 1}]
    assert kept(scores, Filters(min_p=0.6)) == [{0, 1}]
    assert kept(scores, Filters(top_p=1e-9)) == [{0}]


def test_reused_memory_holds_no_old_values() -> None:
    weights = Weights(2, 700, torch.device("cpu"))
    weights.fill(torch.zeros(2, 700), [Filters(), Filters()])
    assert weights.fill(torch.zeros(1, 700), [Filters(top_k=5)]) == [True]
    assert float(weights.sums.sum()) == 5
    assert weights.tiles.shape == (1, 2, 512)
