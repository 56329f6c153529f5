"""What a backend keeps in memory, and the size of the cache."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from orcastream.engine import EngineConfig, OrcaEngine, engine
from orcastream.engine.attention import TorchBackend, TritonBackend
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.model.cache_setup import make_cache
from tests.engine.conftest import build
from tests.engine.emulated_cuda import emulated_cuda, lacking

_WORKSPACE_BYTES = 2**15

SETTINGS: dict[str, Any] = {"block_size": 4, "max_num_batched_tokens": 16, "max_batch_size": 16, "max_model_len": 128}


@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_what_a_backend_keeps_takes_its_own_size_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[torch.Tensor] = []
    plan = TritonBackend.plan

    def keeping(backend: TritonBackend, batch: FlatBatch, dtype: torch.dtype) -> Any:
        if not kept:
            kept.append(torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=batch.device))
        return plan(backend, batch, dtype)

    with emulated_cuda(tmp_path, total_memory=3 * 2**17) as device:

        def cache_bytes() -> int:
            model = build("llama", num_hidden_layers=1).to("cuda")
            loaded = OrcaEngine(EngineConfig("tiny", cuda_graphs="off", **SETTINGS), model)
            total = sum(part.nbytes for part in loaded._runner.cache_memory)
            del loaded, model
            gc.collect()
            device.synchronize()
            return total

        without = cache_bytes()
        monkeypatch.setattr(TritonBackend, "plan", keeping)
        assert without - cache_bytes() == pytest.approx(_WORKSPACE_BYTES, rel=0.1)
        kept.clear()


def test_the_backend_of_the_self_check_is_gone_when_the_cache_is_sized(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: weakref.WeakSet[TorchBackend] = weakref.WeakSet()
    alive = []

    class Noted(TorchBackend):
        def __init__(self) -> None:
            backends.add(self)

    def noting(*given: Any) -> Any:
        alive.append(len(backends))
        return make_cache(*given)

    monkeypatch.setattr(engine, "choose_backend", lambda *_: Noted())
    monkeypatch.setattr(engine, "make_cache", noting)
    OrcaEngine.load(EngineConfig(str(saved_llama), kv_cache_memory=2**18, **SETTINGS))
    assert alive == [1]
