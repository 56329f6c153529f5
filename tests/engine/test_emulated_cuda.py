"""The engine's way over a CUDA device, on an emulated one that is late and strict; see there."""

import gc
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.native.compiler import Compiler
from tests.engine.conftest import build
from tests.engine.emulated_cuda import EmulatedCuda, emulated_cuda
from tests.engine.running import request, run, tokens
from tests.lora import save_adapter

pytestmark = [
    pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch has a real one"),
    pytest.mark.skipif(shutil.which(Compiler.find().command[0]) is None, reason="no C++ compiler"),
]

SETTINGS: dict[str, Any] = {
    "block_size": 4,
    "kv_cache_memory": 2**17,
    "max_batch_size": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 48,
}


@pytest.fixture
def cuda(tmp_path: Path) -> Iterator[EmulatedCuda]:
    pytest.importorskip("triton")
    with emulated_cuda(tmp_path) as device:
        yield device


def greedy() -> list[Request]:
    return [request(f"{index}", tuple(range(1, 3 + 5 * index)), max_tokens=2 + index) for index in range(4)]


def mixed() -> list[Request]:
    """What the sampler does on the device."""
    settings: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_k": 5, "seed": 4, "repetition_penalty": 1.3},
        {"temperature": 1.3, "top_p": 0.7, "logprobs": 2, "frequency_penalty": 0.5},
        {"logit_bias": ((7, 3.0),), "min_tokens": 2, "stop_token_ids": (3,)},
        {"temperature": 1.0, "min_p": 0.05},
    ]
    return [
        request(f"{index}", tuple(range(1, 3 + 5 * index)), max_tokens=3, **each) for index, each in enumerate(settings)
    ]


LAYERS = {"llama": 1, "gemma2": 2, "mixtral": 1}
"""As few as there are kinds of them: kernels are interpreted."""


def model_of(family: str) -> PreTrainedModel:
    return build(family, num_hidden_layers=LAYERS[family])


def on_a_cpu(requests: list[Request], family: str = "llama", **settings: Any) -> dict[str, list[int | None]]:
    config = EngineConfig("tiny", attention_backend="torch", **{**SETTINGS, **settings})
    return {name: tokens(each) for name, each in run(OrcaEngine(config, model_of(family)), *requests).items()}


def on_the_device(engine: OrcaEngine, requests: list[Request]) -> dict[str, list[int | None]]:
    return {name: tokens(each) for name, each in run(engine, *requests).items()}


# -- the device itself ------------------------------------------------------------------------------------------


def test_page_locked_memory_is_read_late_and_written_late(cuda: EmulatedCuda) -> None:
    source = torch.empty(3, pin_memory=True)
    source.fill_(1)
    there = source.to("cuda", non_blocking=True)
    source.fill_(2)
    target = torch.empty(3, pin_memory=True)
    target.copy_(there, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    assert target.isnan().all()
    copied.synchronize()
    assert target.tolist() == [2, 2, 2]


def test_another_stream_is_not_waited_for(cuda: EmulatedCuda) -> None:
    stream = torch.cuda.Stream()
    one = torch.ones(2, device="cuda")
    with torch.cuda.stream(stream):
        two = one + 1
    assert two.cpu().isnan().all()
    torch.cuda.current_stream().wait_stream(stream)
    assert two.tolist() == [2, 2]


def test_what_a_gpu_refuses_is_refused(cuda: EmulatedCuda) -> None:
    there = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="on the same device"):
        there + torch.ones(2)
    with pytest.raises(RuntimeError, match="on the same device"):
        there.index_select(0, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(torch.AcceleratorError),
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph),
    ):
        there.sum().item()
    assert (there + torch.tensor(1.0)).tolist() == [2, 2]


def test_a_graph_repeats_its_work_on_the_same_memory(cuda: EmulatedCuda) -> None:
    there = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = there * 2
    assert result.cpu().isnan().all()
    for number in (3, 5):
        there.fill_(number)
        graph.replay()
        assert result.tolist() == [2 * number, 2 * number]


# -- the engine on it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "graphs"), [("llama", "on"), ("gemma2", "on"), ("llama", "off")])
@pytest.mark.parametrize("requests", [greedy, mixed])
def test_tokens_are_those_of_a_cpu(
    family: str, graphs: Any, requests: Callable[[], list[Request]], cuda: EmulatedCuda
) -> None:
    engine = OrcaEngine(EngineConfig("tiny", cuda_graphs=graphs, **SETTINGS), model_of(family).to("cuda"))
    assert engine.operators.attention_backend == "triton"
    assert (engine._runner.graphs is not None) == (graphs == "on")
    assert on_the_device(engine, requests()) == on_a_cpu(requests(), family)


def test_the_host_waits_for_nothing_but_the_tokens(cuda: EmulatedCuda) -> None:
    """Iterations follow one another while requests only take their likeliest tokens."""
    engine = OrcaEngine(EngineConfig("tiny", **SETTINGS), model_of("llama").to("cuda"))
    cuda.waited.clear()
    on_the_device(engine, greedy())
    assert {what for what, _ in cuda.waited} == {"Event.synchronize"}
    assert {where.partition(":")[0] for _, where in cuda.waited} == {"picked.py"}
    (count,) = Counter(cuda.waited).values()
    assert count == engine.stats().iterations


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_requests_that_make_way_go_on_as_before(preemption: Any, kv_cache_dtype: Any, cuda: EmulatedCuda) -> None:
    def requests() -> list[Request]:
        return [request(f"{index}", tuple(range(index, index + 9)), max_tokens=9) for index in range(3)]

    few = {
        "kv_cache_memory": 9 * (512 if kv_cache_dtype == "auto" else 160),
        "kv_cache_dtype": kv_cache_dtype,
        "host_cache_memory": 2**16,
        "preemption": preemption,
        "max_model_len": 20,
    }
    engine = OrcaEngine(EngineConfig("tiny", **{**SETTINGS, **few}), model_of("llama").to("cuda"))
    assert on_the_device(engine, requests()) == on_a_cpu(requests(), kv_cache_dtype=kv_cache_dtype)
    assert engine.stats().preemptions > 0
    assert (engine.stats().swaps > 0) == (preemption == "swap")


def test_a_model_that_asks_the_device_for_a_number_is_computed_without_graphs(cuda: EmulatedCuda) -> None:
    """Its experts in float32. The stream is the one from before the attempt."""
    model = model_of("mixtral").to("cuda")
    engine = OrcaEngine(EngineConfig("tiny", **SETTINGS), model)
    assert engine._runner.graphs is None
    assert torch.cuda.current_stream() is cuda.default_stream
    assert on_the_device(engine, greedy()[:2]) == on_a_cpu(greedy()[:2], "mixtral")
    with pytest.raises(ValueError, match="cuda_graphs: got 'on', allowed for this model: auto, off"):
        OrcaEngine(EngineConfig("tiny", cuda_graphs="on", **SETTINGS), model)


def test_an_adapter_is_read_by_another_thread(cuda: EmulatedCuda, tmp_path: Path) -> None:
    folder = save_adapter(model_of("llama"), tmp_path / "adapter", seed=1)

    def with_adapter(engine: OrcaEngine) -> dict[str, list[int | None]]:
        assert engine.adapters is not None
        with ThreadPoolExecutor(1) as threads:
            adapter = threads.submit(engine.adapters.read, "a", folder).result()
        requests = greedy()[:3]
        requests[1].adapter = adapter
        return on_the_device(engine, requests)

    settings = {**SETTINGS, "max_adapters": 1}
    expected = with_adapter(OrcaEngine(EngineConfig("tiny", attention_backend="torch", **settings), model_of("llama")))
    assert with_adapter(OrcaEngine(EngineConfig("tiny", **settings), model_of("llama").to("cuda"))) == expected
    assert expected != on_a_cpu(greedy()[:3])


def test_the_cache_takes_what_is_left_and_gives_it_back(cuda: EmulatedCuda, saved_llama: Path) -> None:
    """Sized by a pass that is measured; another engine finds all of it free once the first has gone."""
    cuda.total_memory = 3 * 2**17
    settings = {**SETTINGS, "kv_cache_memory": None, "max_batch_size": 16, "max_model_len": 128, "cuda_graphs": "off"}
    config = EngineConfig(str(saved_llama), self_check=False, **settings)
    gc.collect()
    held, sizes = cuda.allocated, []
    for _ in range(2):
        engine = OrcaEngine.load(config)
        sizes.append(engine.cache.blocks_total)
        assert 0.5 * cuda.total_memory < cuda.allocated < 0.95 * cuda.total_memory
        assert len(on_the_device(engine, greedy())["3"]) == 5
        del engine
        gc.collect()
        cuda.synchronize()
        assert cuda.allocated == held
    assert sizes[0] == sizes[1] < 16 * 128 / 4
