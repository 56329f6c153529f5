"""The emulated CUDA device, and the engine on it: streams, events, page-locked memory, capture and replay."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, Request
from tests.engine.conftest import build
from tests.engine.emulated_cuda import EmulatedCuda, emulated_cuda, lacking
from tests.engine.running import request, run, tokens
from tests.lora import save_adapter

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())

SETTINGS: dict[str, Any] = {
    "block_size": 4,
    "kv_cache_memory": 2**17,
    "max_batch_size": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 48,
}


@pytest.fixture
def cuda(tmp_path: Path) -> Iterator[EmulatedCuda]:
    """Replace torch.cuda with an emulated device for one test."""
    with emulated_cuda(tmp_path) as device:
        yield device


def greedy() -> list[Request]:
    """Return four requests that take the likeliest token at each step."""
    return [request(f"{index}", tuple(range(1, 3 + 5 * index)), max_tokens=2 + index) for index in range(4)]


def random() -> list[Request]:
    """Return four requests of which most draw at random, with each of the filters."""
    settings: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05, "seed": 4}]
    return [
        request(
            f"{index}", tuple(range(1, 3 + 5 * index)), max_tokens=2 + index, **{"temperature": index and 1.3, **each}
        )
        for index, each in enumerate(settings)
    ]


def mixed() -> list[Request]:
    """Return four requests with different settings for the parts of the sampler that run on the device."""
    settings: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_k": 5, "seed": 4, "repetition_penalty": 1.3},
        {"temperature": 1.3, "top_p": 0.7, "logprobs": 2, "frequency_penalty": 0.5},
        {"logit_bias": ((7, 3.0),), "min_tokens": 2, "stop_token_ids": (3,)},
        {"temperature": 1.0, "min_p": 0.05},
    ]
    return [
        request(f"{index}", tuple(range(1, 3 + 5 * index)), max_tokens=3, **each) for index, each in enumerate(settings)
    ]


LAYERS = {"llama": 1, "gemma2": 2, "gpt2": 1, "mixtral": 1}
"""One layer of each kind that the family has, because Triton's interpreter is slow."""


def model_of(family: str) -> PreTrainedModel:
    """Return a tiny random model with as few layers as possible."""
    return build(family, num_hidden_layers=LAYERS[family])


def on_a_cpu(requests: list[Request], family: str = "llama", **settings: Any) -> dict[str, list[int | None]]:
    """Return the tokens per request from a new engine on the CPU with the torch backend."""
    config = EngineConfig("tiny", attention_backend="torch", **{**SETTINGS, **settings})
    return {name: tokens(each) for name, each in run(OrcaEngine(config, model_of(family)), *requests).items()}


def on_the_device(engine: OrcaEngine, requests: list[Request]) -> dict[str, list[int | None]]:
    """Return the tokens per request from an engine that is already on the device."""
    return {name: tokens(each) for name, each in run(engine, *requests).items()}


# -- the device itself ------------------------------------------------------------------------------------------


def test_a_copy_reads_and_writes_page_locked_memory_late(cuda: EmulatedCuda) -> None:
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


def test_page_locked_memory_is_known_until_it_is_freed(cuda: EmulatedCuda) -> None:
    some, none = torch.empty(3, pin_memory=True), torch.empty(0, pin_memory=True)
    assert some.is_pinned()
    del some, none
    assert not cuda.pinned


def test_work_does_not_wait_for_another_stream(cuda: EmulatedCuda) -> None:
    stream = torch.cuda.Stream()
    one = torch.ones(2, device="cuda")
    with torch.cuda.stream(stream):
        two = one + 1
    assert two.cpu().isnan().all()
    torch.cuda.current_stream().wait_stream(stream)
    assert two.tolist() == [2, 2]


def test_the_device_refuses_what_a_gpu_refuses(cuda: EmulatedCuda) -> None:
    there = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="on the same device"):
        there + torch.ones(2)
    with pytest.raises(RuntimeError, match="on the same device"):
        there.index_select(0, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="Expected mat_a to be"):
        torch._grouped_mm(there.double().view(1, 2), there.double().view(1, 2, 1), torch.ones(1, device="cuda").int())
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(torch.AcceleratorError),
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph),
    ):
        there.sum().item()
    assert (there + torch.tensor(1.0)).tolist() == [2, 2]


def test_each_replay_of_a_graph_uses_the_same_memory(cuda: EmulatedCuda) -> None:
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


@pytest.mark.parametrize(
    ("family", "graphs", "requests"),
    [
        ("llama", "on", greedy),
        ("llama", "on", random),
        ("llama", "on", mixed),
        ("gemma2", "on", random),
        ("gpt2", "on", greedy),  # it has a padding token, which transformers would look for in each forward pass
        ("llama", "off", greedy),
        ("llama", "off", mixed),
    ],
)
def test_the_device_computes_the_same_tokens_as_a_cpu(
    family: str, graphs: Any, requests: Callable[[], list[Request]], cuda: EmulatedCuda
) -> None:
    engine = OrcaEngine(EngineConfig("tiny", cuda_graphs=graphs, **SETTINGS), model_of(family).to("cuda"))
    assert engine.operators.attention_backend == "triton"
    assert (engine._runner.graphs is not None) == (graphs == "on")
    assert on_the_device(engine, requests()) == on_a_cpu(requests(), family)


@pytest.mark.parametrize("requests", [greedy, random])
def test_the_host_waits_only_for_tokens(requests: Callable[[], list[Request]], cuda: EmulatedCuda) -> None:
    """The host waits once per iteration, for the event that follows the copy of the tokens."""
    engine = OrcaEngine(EngineConfig("tiny", **SETTINGS), model_of("llama").to("cuda"))
    cuda.waited.clear()
    on_the_device(engine, requests())
    assert {what for what, _ in cuda.waited} == {"Event.synchronize"}
    assert {where.partition(":")[0] for _, where in cuda.waited} == {"picked.py"}
    (count,) = Counter(cuda.waited).values()
    assert count == engine.stats().iterations


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_no_kernel_is_compiled_while_requests_wait(kv_cache_dtype: Any, cuda: EmulatedCuda) -> None:
    """Without graphs, and without the pass that measures memory, both of which compile some."""
    settings = {**SETTINGS, "kv_cache_dtype": kv_cache_dtype, "cuda_graphs": "off"}
    engine = OrcaEngine(EngineConfig("tiny", **settings), model_of("gemma2").to("cuda"))
    compiled = set(cuda.kernels)
    on_the_device(engine, random())
    assert cuda.kernels == compiled


def test_the_host_draws_if_the_kernel_does_not_compile(cuda: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("PassManager::run failed")

    from orcastream.engine.sampling.triton import draw

    monkeypatch.setattr(draw, "draw", fails)
    engine = OrcaEngine(EngineConfig("tiny", **SETTINGS), model_of("llama").to("cuda"))
    assert on_the_device(engine, random()) == on_a_cpu(random())


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_preempted_requests_get_the_same_tokens(preemption: Any, kv_cache_dtype: Any, cuda: EmulatedCuda) -> None:
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


def test_the_host_cache_is_ordinary_memory(cuda: EmulatedCuda) -> None:
    """torch rounds each piece of page-locked memory up to a power of two."""
    engine = OrcaEngine(EngineConfig("tiny", host_cache_memory=2**16, **SETTINGS), model_of("llama").to("cuda"))
    (group,) = engine.cache.groups
    assert group.store is not None
    assert not any(part.is_pinned() for layer in group.store.host for part in layer.tensors)


def test_a_model_that_waits_for_the_device_runs_without_graphs(cuda: EmulatedCuda) -> None:
    """In float32 the experts of Mixtral make the host wait. No capture begins: a failed one would spoil the allocator,
    which the second engine uses."""
    model = model_of("mixtral").to("cuda")
    engine = OrcaEngine(EngineConfig("tiny", **SETTINGS), model)
    assert engine._runner.graphs is None
    assert torch.cuda.current_stream() is cuda.default_stream
    assert on_the_device(engine, greedy()[:2]) == on_a_cpu(greedy()[:2], "mixtral")
    with pytest.raises(ValueError, match="cuda_graphs: got 'on', allowed for this model: auto, off"):
        OrcaEngine(EngineConfig("tiny", cuda_graphs="on", **SETTINGS), model)


def test_another_thread_can_load_an_adapter(cuda: EmulatedCuda, tmp_path: Path) -> None:
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


def test_the_cache_uses_the_free_memory_and_returns_it(cuda: EmulatedCuda, saved_llama: Path) -> None:
    """A measured pass determines the size of the cache. The second engine finds as much free memory as the first."""
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
