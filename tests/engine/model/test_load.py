"""Loading a model, and reading its configuration."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.model.load import (
    eos_token_ids,
    load_model,
    load_model_config,
    resolve_dtype,
    resolve_max_model_len,
)
from orcastream.engine.native import instruction_sets
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS
from orcastream.schemas.sampling import SamplingParams

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def config(**values: Any) -> Any:
    """Return the part of a transformers configuration that the loader reads."""
    made = SimpleNamespace(**values)
    made.get_text_config = lambda: made
    return made


@pytest.fixture(params=[False, True], ids=["without bfloat16", "with bfloat16"])
def bfloat16(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the processor reports instructions for bfloat16."""
    told = tmp_path / "cpuinfo"
    needed = [flag for flags in INSTRUCTION_SETS.values() for flag in flags]
    told.write_text("flags\t: " + " ".join(flag for flag in needed if request.param or "bf16" not in flag) + "\n")
    monkeypatch.setattr(instruction_sets, "_CPU_INFO", told)
    return bool(request.param) and "avx512_bf16" in needed


def test_auto_dtype_on_a_cpu_is_the_dtype_it_computes_in(bfloat16: bool) -> None:
    expected = torch.bfloat16 if bfloat16 else torch.float32
    assert resolve_dtype("auto", CPU, config(dtype=torch.bfloat16)) is expected
    assert resolve_dtype("auto", CPU, config(dtype=torch.float16)) is torch.float32
    assert resolve_dtype("auto", CPU, config(dtype=torch.float32)) is torch.float32
    assert resolve_dtype("auto", CPU, config(dtype=None)) is torch.float32
    assert resolve_dtype("float32", CPU, config(dtype=torch.bfloat16)) is torch.float32
    assert resolve_dtype("bfloat16", CPU, config(dtype=torch.float32)) is torch.bfloat16


def test_auto_dtype_on_a_gpu_is_the_checkpoints() -> None:
    assert resolve_dtype("auto", CUDA, config(dtype=torch.bfloat16)) is torch.bfloat16
    assert resolve_dtype("auto", CUDA, config(dtype=None)) is torch.float32
    assert resolve_dtype("float16", CPU, config(dtype=torch.bfloat16)) is torch.float16


def test_a_bfloat16_checkpoint_uses_a_dtype_that_the_processor_supports(saved_llama: Path, bfloat16: bool) -> None:
    settings = EngineConfig(str(saved_llama), device="cpu")
    model = load_model(settings, load_model_config(settings), CPU)
    assert model.dtype is (torch.bfloat16 if bfloat16 else torch.float32)
    assert not model.training


def test_the_demo_model_is_computed_in_float32_everywhere(bfloat16: bool) -> None:
    settings = EngineConfig(str(demo.MODEL_DIR), device="cpu")
    model_config = load_model_config(settings)
    assert load_model(settings, model_config, CPU).dtype is torch.float32
    assert resolve_dtype("auto", CUDA, model_config) is torch.float32


def test_max_model_len() -> None:
    limited = config(max_position_embeddings=128)
    assert resolve_max_model_len(EngineConfig("x"), limited) == 128
    assert resolve_max_model_len(EngineConfig("x", max_model_len=20), limited) == 20
    with pytest.raises(ValueError, match="max_model_len: got 129, allowed: at most 128"):
        resolve_max_model_len(EngineConfig("x", max_model_len=129), limited)
    assert resolve_max_model_len(EngineConfig("x", max_model_len=20), config()) == 20
    with pytest.raises(ValueError, match="set max_model_len"):
        resolve_max_model_len(EngineConfig("x"), config())


def test_eos_of_both_configurations(make_model: Callable[..., PreTrainedModel]) -> None:
    model = make_model("llama", eos_token_id=7)
    model.generation_config = GenerationConfig(eos_token_id=[3, 4])
    assert eos_token_ids(model) == {3, 4, 7}
    assert eos_token_ids(make_model("llama")) == frozenset()


def test_an_eos_outside_the_vocabulary_ends_nothing(make_model: Callable[..., PreTrainedModel]) -> None:
    assert eos_token_ids(make_model("llama", eos_token_id=[-1, 5, 95, 96])) == {5, 95}


@pytest.mark.parametrize("ids", ["</s>", 1.5, True, [1, None], [[1, 2]]])
def test_an_eos_that_is_not_a_token_id(ids: Any, make_model: Callable[..., PreTrainedModel]) -> None:
    """transformers checks only the one in the model's configuration."""
    model = make_model("llama")
    model.generation_config = GenerationConfig()
    model.generation_config.eos_token_id = ids
    with pytest.raises(UnsupportedModel, match="eos_token_id: got"):
        eos_token_ids(model)


def test_an_unknown_architecture_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "not_there"}')
    with pytest.raises(UnsupportedModel, match="not_there"):
        OrcaEngine.load(EngineConfig(str(tmp_path), device="cpu"))


def test_an_encoder_decoder_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UnsupportedModel):
        OrcaEngine.load(EngineConfig(str(tmp_path), device="cpu", max_model_len=64))


def test_a_missing_directory_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        OrcaEngine.load(EngineConfig(str(tmp_path / "nothing"), device="cpu"))


def test_a_directory_without_a_model_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"^model: got '{tmp_path}', allowed: a directory with a config.json, or"
    ):
        OrcaEngine.load(EngineConfig(str(tmp_path), device="cpu"))


def test_refused_before_the_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bloom", "hidden_size": 64, "n_head": 4}')
    with pytest.raises(UnsupportedModel, match="alibi"):
        OrcaEngine.load(EngineConfig(str(tmp_path), device="cpu", max_model_len=64))


def test_a_mixture_of_experts_is_served_with_router_logits_left_on(
    make_model: Callable[..., PreTrainedModel], greedy_reference: Callable[..., list[int]], tmp_path: Path
) -> None:
    model = make_model("mixtral", output_router_logits=True)
    model.save_pretrained(tmp_path)
    engine = OrcaEngine.load(EngineConfig(str(tmp_path), device=model.device.type, kv_cache_memory=1 << 22))
    [completion] = engine.generate([(3, 4, 5)], SamplingParams(temperature=0, max_tokens=8))
    assert list(completion.output_ids) == greedy_reference(model, (3, 4, 5), 8)
