"""The size of the KV cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine import EngineConfig, OrcaEngine
from engine.attention import TorchBackend
from engine.kv.size import _largest_spans, measure_num_blocks
from engine.model.runner import ModelRunner

LIMITS: dict[str, Any] = {"block_size": 16, "token_budget": 64, "max_batch_size": 4, "max_model_len": 100}


@pytest.fixture
def runner(make_model: Callable[..., PreTrainedModel]) -> ModelRunner:
    return ModelRunner(make_model(), TorchBackend())


def test_bytes_make_blocks(runner: ModelRunner) -> None:
    block = runner.bytes_per_block(16)
    assert measure_num_blocks(runner, kv_cache_memory=5 * block + block // 2, **LIMITS) == 5


def test_never_more_than_can_be_used(runner: ModelRunner) -> None:
    assert measure_num_blocks(runner, kv_cache_memory=1 << 40, **LIMITS) == 4 * 7


def test_measured_by_default(runner: ModelRunner) -> None:
    assert 1 <= measure_num_blocks(runner, kv_cache_memory=None, **LIMITS) <= 4 * 7


def test_not_even_one_block(runner: ModelRunner) -> None:
    with pytest.raises(ValueError, match="kv_cache_memory: got 100 bytes, allowed: at least"):
        measure_num_blocks(runner, kv_cache_memory=100, **LIMITS)


def test_the_pool_is_the_limit_that_the_engine_tells(make_model: Callable[..., PreTrainedModel]) -> None:
    model = make_model()
    block = ModelRunner(model, TorchBackend()).bytes_per_block(8)
    engine = OrcaEngine(EngineConfig("x", block_size=8, kv_cache_memory=6 * block), model)
    assert engine.limits.max_cached_tokens == 48
    assert engine.limits.max_total_tokens == 48


@pytest.mark.parametrize(("budget", "requests"), [(64, 4), (3, 4), (1000, 4)])
def test_the_largest_iteration_uses_the_budget_up(budget: int, requests: int) -> None:
    spans = _largest_spans(budget, requests, 100, 16)
    lengths = [len(span.ids) for span in spans]
    assert sum(lengths) == min(budget, requests * 100)
    assert len(spans) == min(budget, requests)
    blocks = [block for span in spans for block in span.table.blocks]
    assert len(set(blocks)) == len(blocks)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_profiling_leaves_room_for_activations(make_model: Callable[..., PreTrainedModel]) -> None:
    runner = ModelRunner(make_model().cuda(), TorchBackend())
    assert measure_num_blocks(runner, kv_cache_memory=None, **LIMITS) == 4 * 7
