"""The most probable tokens and their log probabilities."""

import pytest
import torch

from orcastream.engine.sampling.highest import by_rank, highest
from orcastream.engine.sampling.likeliest import likeliest, num_above


@pytest.mark.parametrize("vocab", [1, 5, 700, 151_936])
@pytest.mark.parametrize("count", [1, 3, 20, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_like_a_stable_sort_of_log_softmax(vocab: int, count: int, dtype: torch.dtype, device: torch.device) -> None:
    logits = (torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)) * 3).to(device, dtype)
    found = likeliest(logits, [3, 0, 3], count)
    values, ids = logits.double().log_softmax(-1)[[3, 0, 3]].cpu().sort(dim=-1, descending=True, stable=True)
    assert [[token for token, _ in row] for row in found] == ids[:, :count].tolist()
    assert torch.allclose(
        torch.tensor([[value for _, value in row] for row in found]).double(), values[:, :count], atol=2e-6
    )


def test_rows_with_fewer_candidates(device: torch.device) -> None:
    inf = torch.inf
    logits = torch.tensor([[0.0, -inf, 0.0], [0.0, torch.nan, 0.0], [-inf] * 3, [0.0, inf, 0.0]], device=device)
    half = pytest.approx(-0.6931472)
    assert likeliest(logits, range(4), 3) == [[(0, half), (2, half)], [], [], []]
    assert likeliest(logits, [0], 0) == [[]]
    assert likeliest(logits, [], 3) == []
    with pytest.raises(ValueError, match="count is -1"):
        likeliest(logits, [0], -1)


@pytest.mark.parametrize("count", [1, 7, 400])
def test_both_methods_agree_on_the_highest(count: int) -> None:
    scores = torch.randn(5, 40_000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    scores[0] = 0.0
    scores[1, ::2] = -0.0
    values, ids = by_rank(scores, count)
    assert highest(scores, count) == list(zip(values.tolist(), ids.tolist(), strict=True))


@pytest.mark.parametrize("vocab", [1, 5, 700, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_number_of_tokens_above(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Equal tokens are not above each other, and bfloat16 has many of them."""
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(9, vocab, generator=generator) * 3).to(device, dtype)
    tokens = torch.randint(vocab, (9, 1), generator=generator).to(device)
    tokens[0] = logits[0].argmax()
    logprobs = logits.double().log_softmax(dim=-1)
    expected = (logprobs > logprobs.gather(1, tokens)).sum(dim=1).tolist()
    assert num_above(logits, logits.gather(1, tokens)) == expected
    assert expected[0] == 0
