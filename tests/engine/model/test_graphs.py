"""Decodes are padded to a captured size; without a GPU, a recording recomputes what a graph would replay."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.batch.static_batch import NOWHERE, StaticBatch
from orcastream.engine.model.graphs import DecodeGraphs, _Captured, ladder
from orcastream.schemas.sampling import SamplingParams
from tests.engine.conftest import build

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [5, 6], [9] * 20]


def record(compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    result = compute()
    return (lambda: result.copy_(compute())), result


@pytest.mark.parametrize("largest", [1, 3, 8, 32, 100, 512])
def test_the_ladder_of_sizes_pads_few_rows(largest: int) -> None:
    sizes = ladder(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert len(sizes) <= 24
    for rows in range(17, largest + 1):
        assert min(size for size in sizes if size >= rows) < 1.5 * rows


def test_padded_decodes_generate_the_same_tokens(triton_device: torch.device) -> None:
    """A model with a window and one without, over prefill, mixed iterations and a decreasing number of decodes."""
    model = build("gemma2").to(triton_device)
    params = [SamplingParams(max_tokens=count, temperature=0, ignore_eos=True) for count in (4, 3, 2)]
    settings: dict[str, Any] = {"block_size": 4, "kv_cache_memory": 2**20, "max_batch_size": 6, "cuda_graphs": "off"}
    expected = OrcaEngine(EngineConfig("tiny", attention_backend="torch", **settings), model).generate(PROMPTS, params)
    engine = OrcaEngine(EngineConfig("tiny", attention_backend="triton", **settings), model)
    graphs = DecodeGraphs(engine._runner, StaticBatch.beside(engine.cache, 6, engine.device), record)
    graphs.capture([2, 6])
    engine._runner.graphs = graphs
    replayed: list[int] = []
    replay = graphs.replay
    graphs.replay = lambda batch: replayed.append(batch.num_spans) or replay(batch)  # type: ignore[method-assign,func-returns-value,assignment]
    assert [each.output_ids for each in engine.generate(PROMPTS, params)] == [each.output_ids for each in expected]
    assert replayed == [3, 2, 1]
    engine.check_integrity()


def test_padding_rows_write_nothing(triton_device: torch.device) -> None:
    model = build("llama").to(triton_device)
    engine = OrcaEngine(
        EngineConfig("tiny", block_size=4, kv_cache_memory=2**18, attention_backend="triton", cuda_graphs="off"), model
    )
    static = StaticBatch.beside(engine.cache, 3, engine.device)
    for layer in engine._runner.layers:
        for part in layer.tensors:
            part.zero_()
    before = [part.clone() for layer in engine._runner.layers for part in layer.tensors]
    logits = engine._runner.compute(static.first(3))
    assert logits.isfinite().all()
    assert (static.first(3).groups[0].slots == NOWHERE).all()
    after = [part for layer in engine._runner.layers for part in layer.tensors]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="allowed there")
def test_on_a_cpu_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="cuda_graphs: got 'on', allowed on device cpu: auto, off"):
        OrcaEngine(EngineConfig("tiny", cuda_graphs="on", kv_cache_memory=2**20), build("llama"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.cuda
def test_captured_graphs_generate_the_same_tokens() -> None:
    model = build("gemma2").to("cuda")
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    engines = [
        OrcaEngine(EngineConfig("tiny", block_size=4, kv_cache_memory=2**20, cuda_graphs=setting), model)
        for setting in ("off", "on")
    ]
    assert engines[1]._runner.graphs is not None
    first, second = ([each.output_ids for each in engine.generate(PROMPTS, params)] for engine in engines)
    assert first == second


def test_iterations_with_adapters_are_not_replayed() -> None:
    """A graph would compute them without the adapter."""
    engine = OrcaEngine(EngineConfig("tiny", kv_cache_memory=2**18, attention_backend="torch"), build("llama"))
    static = StaticBatch.beside(engine.cache, 4, engine.device)
    graphs = DecodeGraphs(engine._runner, static, record)
    batch = static.first(2)
    graphs._captured[4] = _Captured(static.first(4), None, lambda: None, torch.zeros(4, 1))
    assert graphs.take(batch)
    assert not graphs.take(replace(batch, adapters=np.array([0, -1])))
