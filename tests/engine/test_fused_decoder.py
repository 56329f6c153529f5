"""Decoders in few kernels on the emulated CUDA device: which models get one, and whole engines with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention import AttentionBackend, TorchBackend, TritonBackend
from orcastream.engine.model.decoder_model import ATTRIBUTE, Factors
from orcastream.engine.model.load import load_model_config
from orcastream.engine.model.passes import recognize
from orcastream.engine.model.passes.fuse_decoder import FuseDecoder
from orcastream.engine.model.passes.fuse_norm import FusedRMSNorm
from orcastream.engine.model.prepare import prepare_model
from orcastream.engine.model.quiet import quiet
from tests.engine.conftest import build
from tests.engine.emulated_cuda import EmulatedCuda
from tests.engine.test_emulated_cuda import SETTINGS, cuda, greedy, on_the_device, pytestmark, random
from tests.lora import save_adapter

__all__ = ["cuda", "pytestmark"]


def fused(family: str, **changes: Any) -> PreTrainedModel:
    """Return a tiny random model on the device, with its decoder fused."""
    model: PreTrainedModel = build(family, num_hidden_layers=2, **changes).to("cuda")
    assert FuseDecoder().apply(model) == 1
    return model


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"kv_cache_dtype": "int8"}),
        ("qwen2", {"kv_cache_dtype": "fp8"}),
        ("qwen3", {"cuda_graphs": "off"}),
        ("mistral", {}),
    ],
)
def test_a_fused_decoder_computes_the_same_tokens(family: str, settings: dict[str, Any], cuda: EmulatedCuda) -> None:
    config = EngineConfig("tiny", **{**SETTINGS, **settings})
    engine = OrcaEngine(config, fused(family))
    assert engine._runner.is_compiled
    assert (engine._runner.graphs is None) == ("cuda_graphs" in settings)
    compiled = set(cuda.kernels)
    cuda.waited.clear()
    found = on_the_device(engine, random())
    assert {what for what, _ in cuda.waited} == {"Event.synchronize"}
    assert cuda.kernels == compiled
    modules = OrcaEngine(config, build(family, num_hidden_layers=2).to("cuda"))
    assert not modules._runner.is_compiled
    assert found == on_the_device(modules, random())


def test_a_fused_decoder_leaves_adapters_to_the_modules(cuda: EmulatedCuda, tmp_path: Path) -> None:
    folder = save_adapter(build("llama", num_hidden_layers=2), tmp_path / "adapter", seed=1)
    config = EngineConfig("tiny", **{**SETTINGS, "max_adapters": 1})

    def with_adapter(model: PreTrainedModel) -> dict[str, list[int | None]]:
        engine = OrcaEngine(config, model)
        assert engine.adapters is not None
        requests = greedy()[:3]
        requests[1].adapter = engine.adapters.read("a", folder)
        return on_the_device(engine, requests)

    assert with_adapter(fused("llama")) == with_adapter(build("llama", num_hidden_layers=2).to("cuda"))


def prepared(
    folder: Path, family: str, settings: dict[str, Any], backend: type[AttentionBackend] = TorchBackend, **changes: Any
) -> PreTrainedModel:
    """Return a saved model as `OrcaEngine.load` prepares it, with the torch backend, which is faster here."""
    with quiet():
        build(family, **changes).save_pretrained(folder)
    config = EngineConfig(str(folder), **settings)
    return prepare_model(config, load_model_config(config), torch.device("cuda"), backend(), 128)


@pytest.mark.parametrize(
    ("family", "settings", "is_fused"),
    [
        ("qwen3", {"self_check": False}, True),
        ("qwen3", {"model_passes": "off"}, False),
        ("granite", {}, False),
        ("granite", {"self_check": False}, False),
    ],
)
def test_only_models_of_the_kind_are_fused(
    family: str, settings: dict[str, Any], is_fused: bool, cuda: EmulatedCuda, tmp_path: Path
) -> None:
    """Granite has the parts of a llama, but multiplies their outputs by its own factors."""
    changes: dict[str, Any] = {"residual_multiplier": 0.95} if family == "granite" else {}
    assert hasattr(prepared(tmp_path, family, settings, **changes), ATTRIBUTE) == is_fused


def test_a_factor_that_is_overlooked_is_detected(
    cuda: EmulatedCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognize, "_factors", lambda *_: Factors())
    assert not hasattr(prepared(tmp_path, "granite", {}, residual_multiplier=0.95), ATTRIBUTE)
    assert "decoder does not fit this model" in caplog.text


def test_a_fused_decoder_and_the_attention_kernels_pass_the_self_check(
    cuda: EmulatedCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert hasattr(prepared(tmp_path, "qwen3", {}, TritonBackend), ATTRIBUTE)
    assert {"norm_kernel", "prefill_kernel", "split_kernel"} <= {kernel for kernel, *_ in cuda.kernels}
    assert not caplog.text


def test_norms_of_other_models_are_fused(cuda: EmulatedCuda, tmp_path: Path) -> None:
    model = prepared(tmp_path, "gemma2", {"self_check": False}, num_hidden_layers=2)
    assert sum(isinstance(each, FusedRMSNorm) for each in model.modules()) == 9
    ids = torch.arange(5, device="cuda").unsqueeze(0)
    with torch.inference_mode():
        found, expected = model(input_ids=ids).logits, build("gemma2", num_hidden_layers=2)(input_ids=ids.cpu()).logits
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_eight_bit_weights_are_for_cpus(cuda: EmulatedCuda, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weight_dtype: got 'int8', allowed: auto .*for CPUs, not for cuda"):
        prepared(tmp_path, "llama", {"weight_dtype": "int8"})
