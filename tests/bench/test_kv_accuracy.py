"""The accuracy of an 8-bit cache."""

import pytest
import torch

from orcastream.bench.kv_accuracy import agreement, logits_of, perplexity, random_model, write
from orcastream.engine.attention import TorchBackend
from orcastream.engine.model.runner import ModelRunner, resolve_cache_dtype


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_choice_of_tokens_hardly_changes(kind: str) -> None:
    torch.set_num_threads(1)
    model = random_model(64, 2, 4, 2, 16)
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    greedy = write(model, prompts, 0, 24)
    plain = ModelRunner(model, TorchBackend())
    assert agreement(plain, greedy) == 1.0
    exact, own = logits_of(plain, greedy[0]), perplexity(plain, greedy)
    runner = ModelRunner(model, TorchBackend(), resolve_cache_dtype(kind))
    error = (logits_of(runner, greedy[0]) - exact).norm() / exact.norm()
    assert 0 < error < {"int8": 0.02, "fp8": 0.1}[kind]
    assert agreement(runner, greedy) > 0.75
    assert perplexity(runner, greedy) == pytest.approx(own, rel=0.3)
