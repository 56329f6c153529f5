"""Sampling: greedy, distribution, independence of the batch, bans and log probabilities."""

import math
from typing import Any

import pytest
import torch

from orcastream.engine.sampling import race
from orcastream.engine.sampling.sampler import Sampled, SamplingRow, sample, take_best
from orcastream.schemas.sampling import SamplingParams


def row(position: int = 0, seed: int = 1, banned: tuple[int, ...] = (), **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, position, banned)


def draws(probabilities: torch.Tensor, count: int, device: torch.device, **params: Any) -> torch.Tensor:
    """Return how often each token was drawn in `count` draws at different (seed, position)."""
    logits = probabilities.log().expand(count, -1).to(device)
    rows = [row(position=index % 50, seed=index // 50, **params) for index in range(count)]
    tokens = [sampled.token for sampled in sample(logits, rows)]
    return torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()


def check_alike(found: list[Sampled], expected: list[Sampled]) -> None:
    """Compare tokens and likeliest ids; log probabilities may be rounded differently in a batch of another size."""
    assert [each.token for each in found] == [each.token for each in expected]
    assert [each.logprobs is None for each in found] == [each.logprobs is None for each in expected]
    for one, other in zip(found, expected, strict=True):
        if one.logprobs is not None and other.logprobs is not None:
            (own, likeliest), (own_of_other, likeliest_of_other) = one.logprobs, other.logprobs
            assert [token for token, _ in likeliest] == [token for token, _ in likeliest_of_other]
            values = [own_of_other, *(value for _, value in likeliest_of_other)]
            assert [own, *(value for _, value in likeliest)] == pytest.approx(values, abs=1e-5)


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    possible = probabilities > 0
    assert float(counts[~possible].sum()) == 0
    expected = probabilities[possible].double() * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum())


def test_greedy_takes_the_maximum(device: torch.device) -> None:
    logits = torch.randn(5, 30, device=device)
    sampled = sample(logits, [row(temperature=0)] * 5)
    assert [each.token for each in sampled] == logits.argmax(-1).tolist()


@pytest.mark.parametrize(("width", "dtype"), [(30, torch.float32), (9000, torch.float32), (9000, torch.bfloat16)])
def test_the_best_of_rows_equals_sampling(device: torch.device, width: int, dtype: torch.dtype) -> None:
    """Of a wide vocabulary, too, whose highest logits a compiled operator finds on a CPU."""
    logits = torch.randn(6, width, device=device).to(dtype)
    logits[1, 3], logits[2], logits[3, 7] = torch.nan, -torch.inf, torch.inf
    logits[4, [5, 9]] = 40.0
    of = [4, 0, 1, 2, 3, 5]
    found = take_best(logits, of)
    assert found == [each.token for each in sample(logits, [row(temperature=0)] * 6, of)]
    assert [token is None for token in found] == [False, False, True, True, True, False]
    assert found[0] == 5


def test_greedy_and_drawn_rows_share_a_batch(device: torch.device) -> None:
    logits = torch.randn(4, 30, device=device)
    rows = [row(temperature=0), row(3), row(temperature=0), row(4, top_k=5)]
    together = [each.token for each in sample(logits, rows)]
    apart = [sample(logits[index : index + 1], [rows[index]])[0].token for index in range(4)]
    assert together == apart


PROBABILITIES = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
# 99.9 % quantile of chi-square with 4 degrees of freedom; the seeds are fixed, so the test is deterministic.
CRITICAL = 18.5


def test_the_distribution_equals_the_models(device: torch.device) -> None:
    assert chi_square(draws(PROBABILITIES, 20_000, device), PROBABILITIES) < CRITICAL


def test_temperature_sharpens_and_flattens(device: torch.device) -> None:
    for temperature in (0.5, 2.0):
        expected = PROBABILITIES ** (1 / temperature)
        expected /= expected.sum()
        assert chi_square(draws(PROBABILITIES, 20_000, device, temperature=temperature), expected) < CRITICAL


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.45}])
def test_filters_cut_and_renormalize(params: dict[str, Any], device: torch.device) -> None:
    expected = torch.tensor([0.4, 0.25, 0.2, 0.0, 0.0]) / 0.85
    assert chi_square(draws(PROBABILITIES, 20_000, device, **params), expected) < CRITICAL


def test_a_large_flat_vocabulary_is_covered_evenly(device: torch.device) -> None:
    counts = draws(torch.full((20_000,), 1 / 20_000), 2000, device)
    halves = counts.reshape(20, -1).sum(-1)
    assert chi_square(halves, torch.full((20,), 1 / 20)) < 43.8  # 99.9 %, 19 degrees of freedom


def test_a_draw_depends_only_on_seed_and_position(device: torch.device) -> None:
    logits = torch.randn(1, 500, device=device)
    token = sample(logits, [row(7, seed=3)])[0].token
    crowd = torch.cat([torch.randn(9, 500, device=device), logits])
    rows = [row(index, seed=index, top_p=0.5, temperature=0.3) for index in range(9)]
    assert sample(crowd, [*rows, row(7, seed=3)])[-1].token == token
    others = {sample(logits, [row(position, seed=3)])[0].token for position in range(20)}
    assert len(others) > 5


def test_a_very_low_temperature_is_greedy(device: torch.device) -> None:
    logits = torch.randn(3, 30, device=device) * 50
    sampled = sample(logits, [row(temperature=1e-30)] * 3)
    assert [each.token for each in sampled] == logits.argmax(-1).tolist()


def test_one_candidate_is_always_taken(device: torch.device) -> None:
    logits = torch.zeros(500, 50, device=device)
    sampled = sample(logits, [row(index, top_k=1) for index in range(500)])
    assert {each.token for each in sampled} == {0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_never_chosen(temperature: float, device: torch.device) -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0, 0.0]] * 200, device=device)
    rows = [row(index, banned=(0, 1), temperature=temperature) for index in range(200)]
    assert {each.token for each in sample(logits, rows)} <= {2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_scores_has_no_token(temperature: float, device: torch.device) -> None:
    good = torch.tensor([0.0, 30.0, 0.0], device=device)
    bad = torch.tensor([0.0, torch.nan, 0.0], device=device)
    rows = [row(temperature=temperature, logprobs=1), row(temperature=temperature), row(banned=(0, 1, 2))]
    sampled = sample(torch.stack([bad, good, good]), rows)
    assert [each.token for each in sampled] == [None, 1, None]


def test_logprobs_ignore_sampling_settings(device: torch.device) -> None:
    logits = torch.randn(3, 20, device=device)
    rows = [row(temperature=0.1, top_k=2, logprobs=3), row(), row(logprobs=0, temperature=0)]
    sampled = sample(logits, rows)
    expected = logits.log_softmax(-1).cpu()
    own, likeliest = sampled[0].logprobs
    assert math.isclose(own, float(expected[0, sampled[0].token]), rel_tol=1e-5)
    values, ids = expected[0].topk(3)
    assert [token for token, _ in likeliest] == ids.tolist()
    assert torch.allclose(torch.tensor([value for _, value in likeliest]), values)
    assert sampled[1].logprobs is None
    assert sampled[2].logprobs == [pytest.approx(float(expected[2].max())), []]


def test_half_precision_logits(device: torch.device) -> None:
    logits = torch.randn(2, 20, device=device).bfloat16()
    rows = [row(temperature=0), row(temperature=1.0, top_p=0.9)]
    assert all(each.token is not None for each in sample(logits, rows))


@pytest.mark.parametrize("vocab", [1, 511, 513, 9000, 151_936])
def test_rows_of_every_kind_draw_the_same_alone_and_together(vocab: int, device: torch.device) -> None:
    logits = torch.randn(10, vocab, generator=torch.Generator().manual_seed(1)).to(device) * 2
    rows = [
        row(0),
        row(1, temperature=0.3, top_k=7),
        row(2, top_p=0.9),
        row(3, top_p=0.99, min_p=0.001),
        row(4, temperature=0),
        row(5, temperature=100, top_p=0.95),
        row(6, top_k=3000, top_p=0.5, logprobs=2),
        row(7, temperature=1e-9, top_p=0.5),
        row(8, banned=(0,), logprobs=0),
        row(9, banned=(0,), temperature=0),
    ]
    together = sample(logits, rows)
    check_alike(together, [sample(logits[index : index + 1], [each])[0] for index, each in enumerate(rows)])
    check_alike(sample(logits, rows[::-1], of=range(9, -1, -1)), together[::-1])


def test_several_draws_from_one_row_of_logits(device: torch.device) -> None:
    logits = torch.randn(3, 9000, generator=torch.Generator().manual_seed(2)).to(device)
    of = [2, 0, 2, 2, 0, 2]
    rows = [row(index, seed=index, top_p=0.9 if index % 2 else 1.0, logprobs=index) for index in range(6)]
    copied = [logits[source] for source in of]
    check_alike(sample(logits, rows, of), sample(torch.stack(copied), rows))


def test_draws_from_one_row_are_spread_like_its_distribution(device: torch.device) -> None:
    rows = [row(index % 50, seed=index // 50) for index in range(20_000)]
    sampled = sample(PROBABILITIES.log().unsqueeze(0).to(device), rows, of=[0] * 20_000)
    counts = torch.bincount(torch.tensor([each.token for each in sampled]), minlength=5).double()
    assert chi_square(counts, PROBABILITIES) < CRITICAL


def test_rows_and_sources_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows draw from 1 rows"):
        sample(torch.zeros(1, 4), [row(), row()])
    with pytest.raises(ValueError, match="of contains 1; the rows of logits are 0 to 0"):
        sample(torch.zeros(1, 4), [row()], of=[1])


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 9000}])
def test_a_wide_vocabulary_keeps_its_shares_within_and_across_tiles(params: dict[str, Any]) -> None:
    """Weights that differ by tile and by position in a tile; the filters drop tokens of negligible weight."""
    vocab = 20_000
    weights = torch.full((vocab,), 1e-12)
    weights[::100] = torch.linspace(1, 3, 200)
    weights[7], weights[19_999] = 60, 40
    probabilities = weights / weights.sum()
    if "top_p" in params:
        ranked, order = probabilities.double().sort(descending=True, stable=True)
        kept = torch.zeros(vocab, dtype=torch.bool)
        kept[order[ranked.cumsum(0) - ranked < 0.9 - 1e-6]] = True
        probabilities = torch.where(kept, probabilities, 0) / probabilities[kept].sum()
    rows = [row(index % 50, seed=index // 50, **params) for index in range(20_000)]
    sampled = sample(weights.log().unsqueeze(0), rows, of=[0] * 20_000)
    counts = torch.bincount(torch.tensor([each.token for each in sampled]), minlength=vocab).double()
    groups = torch.zeros(vocab, dtype=torch.int64)
    groups[::100] = torch.arange(200) // 10 + 1
    groups[7], groups[19_999] = 21, 22
    found = torch.zeros(23, dtype=torch.float64).index_add_(0, groups, counts)[1:]
    expected = torch.zeros(23, dtype=torch.float64).index_add_(0, groups, probabilities.double())[1:]
    assert chi_square(found, expected / expected.sum()) < 46.8  # 99.9 %, 21 degrees of freedom


@pytest.mark.parametrize("attempts", [1, 2, 4, 30])
@pytest.mark.parametrize("top_p", [0.35, 0.85])
def test_a_draw_that_is_rejected_is_repeated(attempts: int, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tokens of equal weight, of which the first four, or nine, are kept; most or few draws need another race.

    The last kept token shares a tile with all dropped ones: reusing the previous race's noise would favor it.
    """
    monkeypatch.setattr(race, "ATTEMPTS", attempts)
    logits = torch.full((1, 20_000), -30.0)
    tokens = [100, 700, 1200, *range(1540, 1610, 10)]
    logits[0, tokens] = 2.0
    rows = [row(index % 50, seed=index // 50, top_p=top_p) for index in range(5000)]
    sampled = sample(logits, rows, of=[0] * 5000)
    counts = torch.bincount(torch.tensor([each.token for each in sampled]), minlength=20_000).double()
    expected = torch.zeros(20_000)
    number = math.ceil(top_p * 10)
    expected[tokens[:number]] = 1 / number
    assert chi_square(counts, expected) < {4: 16.3, 9: 26.2}[number]  # 99.9 %, one degree of freedom less


@pytest.mark.parametrize("top_p", [0.02, 0.5])
def test_rejected_draws_equal_those_of_the_row_alone(top_p: float, device: torch.device) -> None:
    logits = torch.randn(3, 9000, generator=torch.Generator().manual_seed(6)).to(device)
    rows = [row(index, seed=7, top_p=top_p) for index in range(60)]
    together = sample(logits, rows, of=[index % 3 for index in range(60)])
    assert together == [sample(logits[index % 3].unsqueeze(0), [each])[0] for index, each in enumerate(rows)]


def test_small_rounding_seldom_changes_a_choice() -> None:
    logits = torch.randn(1, 9000, generator=torch.Generator().manual_seed(3))
    moved = logits + (torch.rand(1, 9000, generator=torch.Generator().manual_seed(4)) - 0.5) * 2e-3
    rows = [row(index, seed=5, top_p=0.95) for index in range(1000)]
    before, after = (sample(each, rows, of=[0] * 1000) for each in (logits, moved))
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= 10
