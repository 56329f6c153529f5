"""The size of the KV cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention import AttentionBackend, TorchBackend
from orcastream.engine.kv.layout import LayerGroup, group_layers
from orcastream.engine.kv.size import blocks_that_fit
from orcastream.engine.model.cache_setup import _largest_batch, _largest_lengths, make_cache
from orcastream.engine.model.runner import ModelRunner, resolve_cache_dtype
from orcastream.engine.schedule.plan import MOST_PROMPT_ROWS

FULL, SLIDING = LayerGroup(None, (0,)), LayerGroup(20, (1,))
ONE = {"block_size": 16, "max_batch_size": 4, "max_model_len": 100, "longest_span": 64}


@pytest.fixture
def runner(make_model: Callable[..., PreTrainedModel]) -> ModelRunner:
    return ModelRunner(make_model(), TorchBackend())


def test_bytes_determine_the_number_of_blocks() -> None:
    assert blocks_that_fit(5 * 64 + 63, [FULL], [64], **ONE) == [5]


def test_never_more_blocks_than_usable() -> None:
    assert blocks_that_fit(1 << 40, [FULL], [64], **ONE) == [4 * 7]


def test_groups_share_evenly_until_one_has_all_its_window_needs() -> None:
    longer = {**ONE, "max_model_len": 1000}
    assert blocks_that_fit(20 * 96, [FULL, SLIDING], [64, 32], **longer) == [20, 20]
    sliding = 4 * 2 * 7  # 19 tokens before a span of 64: 83 tokens occupy at most 7 blocks
    assert blocks_that_fit(100 * 64 + sliding * 32, [FULL, SLIDING], [64, 32], **longer) == [100, sliding]


def test_too_little_memory_for_one_block() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory: got 95 bytes, allowed: at least 96"):
        blocks_that_fit(95, [FULL, SLIDING], [64, 32], **ONE)


def test_a_window_that_no_request_outgrows_is_ignored(make_model: Callable[..., PreTrainedModel]) -> None:
    shapes = ModelRunner(make_model("gemma2"), TorchBackend()).shapes
    assert group_layers(shapes, 128) == (LayerGroup(None, (1,)), LayerGroup(10, (0,)))
    assert group_layers(shapes, 10) == (LayerGroup(None, (0, 1)),)


@pytest.mark.parametrize("memory", [None, 1 << 40])
def test_cache_size_is_measured_or_given(runner: ModelRunner, memory: int | None) -> None:
    config = EngineConfig("x", kv_cache_memory=memory, max_batch_size=4)
    assert 1 <= make_cache(runner, config, 100).blocks_total <= 4 * 7


def test_the_pool_is_the_limit_that_the_engine_reports(make_model: Callable[..., PreTrainedModel]) -> None:
    model = make_model()
    block = 2 * ModelRunner(model, TorchBackend()).bytes_per_block(0, 8)
    engine = OrcaEngine(EngineConfig("x", block_size=8, kv_cache_memory=6 * block, self_check=False), model)
    assert engine.limits.max_cached_tokens == 48
    assert engine.limits.max_total_tokens == 48


@pytest.mark.parametrize(("budget", "requests"), [(64, 4), (3, 4), (1000, 4)])
def test_the_largest_iteration_uses_the_whole_budget(budget: int, requests: int) -> None:
    lengths = _largest_lengths(budget, requests, 100)
    assert sum(lengths) == min(budget, requests * 100)
    assert len(lengths) == min(budget, requests)


@pytest.mark.parametrize(
    ("budget", "requests", "rows"), [(64, 4, 64), (3, 4, 3), (1000, 4, 400), (1000, 10, MOST_PROMPT_ROWS + 10)]
)
def test_the_largest_iteration_includes_prompt_rows(budget: int, requests: int, rows: int, runner: ModelRunner) -> None:
    lengths = _largest_lengths(budget, requests, 100)
    config = EngineConfig("x", max_num_batched_tokens=max(budget, requests), max_batch_size=requests)
    batch = _largest_batch(lengths, make_cache(runner, config, 100), runner.device)
    assert batch.input_ids.shape[1] == sum(lengths)
    assert len(batch.logit_rows) == rows
    assert set(batch.logit_spans) == set(range(len(lengths)))
    assert runner.forward(batch).shape[0] == rows


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int8", "fp8"])
def test_the_format_decides_how_many_tokens_fit(name: Any, make_model: Callable[..., PreTrainedModel]) -> None:
    model = make_model(head_dim=64)
    runner = ModelRunner(model, TorchBackend(), resolve_cache_dtype(name))
    size = {"float32": 4 * 64, "int8": 64 + 2, "fp8": 64 + 2}.get(name, 2 * 64)
    assert runner.bytes_per_block(0, 16) == 16 * 2 * 2 * size
    config = EngineConfig("x", kv_cache_memory=100_000, kv_cache_dtype=name, max_batch_size=32, self_check=False)
    assert OrcaEngine(config, model).cache.blocks_total == 100_000 // (2 * 16 * 2 * 2 * size)


def test_a_backend_refuses_a_format_by_name(make_model: Callable[..., PreTrainedModel]) -> None:
    class Plain(TorchBackend):
        name = "plain"
        cache_dtypes = AttentionBackend.cache_dtypes

    with pytest.raises(ValueError, match="kv_cache_dtype: got 'fp8', allowed with attention backend plain: float32, "):
        ModelRunner(make_model(), Plain(), torch.float8_e4m3fn)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_profiling_leaves_room_for_activations(make_model: Callable[..., PreTrainedModel]) -> None:
    runner = ModelRunner(make_model().cuda(), TorchBackend())
    assert make_cache(runner, EngineConfig("x", max_batch_size=4), 100).blocks_total == 4 * 7
