"""A model of a given shape is written, loads, and computes."""

import json
from pathlib import Path
from typing import Any

import pytest

from orcastream.bench.main import main
from orcastream.bench.random_model import model_config
from orcastream.bench.shapes import SHAPES
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.schemas.sampling import SamplingParams
from orcastream.text.tokenizer import Tokenizer


def test_a_generated_model_is_served_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "model"
    assert main(["make-model", "--shape", "qwen3-tiny", str(directory)]) == 0
    assert "parameters in bfloat16, shape qwen3-tiny, seed 0" in capsys.readouterr().out
    engine = OrcaEngine.load(EngineConfig(str(directory), kv_cache_memory=2**22))
    assert engine.limits.vocab_size == SHAPES["qwen3-tiny"].vocab_size
    done = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))[0]
    assert len(done.output_ids) == 4
    words = "".join(f"w{token}" for token in (9, 10))
    assert Tokenizer.load(str(directory)).decode([9, 10]) == words


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "gemma3_text", "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16}
        | {"eos_token_id": [1, 106], "sliding_window": 8},
        {"model_type": "gpt_oss", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "quantization_config": {"quant_method": "mxfp4"}},
    ],
    ids=lambda settings: settings["model_type"],
)
def test_a_model_of_any_configuration(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights in a published format of fewer bits are made in bfloat16."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(settings | sizes), encoding="utf-8")
    directory = tmp_path / "model"
    assert main(["make-model", "--config", str(tmp_path / "config.json"), "--seed", "3", str(directory)]) == 0
    assert f"parameters in bfloat16, shape {tmp_path / 'config.json'}, seed 3" in capsys.readouterr().out
    engine = OrcaEngine.load(EngineConfig(str(directory), kv_cache_memory=2**22, max_model_len=64))
    assert engine.eos_token_ids == {2}
    done = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))[0]
    assert len(done.output_ids) == 4


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "unheard_of"}, "an architecture that transformers knows"),
        ({"model_type": "vit"}, "a configuration from which transformers can make a decoder"),
        ({"model_type": "llama", "hidden_size": "wide"}, "an architecture that transformers knows"),
    ],
    ids=str,
)
def test_a_configuration_of_no_decoder_is_one_line(
    config: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["make-model", "--config", str(tmp_path / "config.json"), str(tmp_path / "model")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(("orcastream bench make-model: --config: got", "--config: got"))
    assert why in error
    assert error.count("\n") == 1


def test_the_shape_is_that_of_qwen3() -> None:
    shape = SHAPES["qwen3-0.6b"]
    assert (shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads) == (1024, 28, 16)
    assert (shape.num_key_value_heads, shape.head_dim, shape.intermediate_size) == (8, 128, 3072)
    assert (shape.vocab_size, shape.max_position_embeddings) == (151_936, 40_960)


def test_a_shape_with_experts_is_that_of_qwen3_moe() -> None:
    """The others have no such settings."""
    config = model_config(SHAPES["qwen3-moe-0.7b"])
    assert (config.model_type, config.architectures) == ("qwen3_moe", ["Qwen3MoeForCausalLM"])
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (64, 8, 384)
    dense = model_config(SHAPES["qwen3-tiny"])
    assert dense.model_type == "qwen3"
    assert not hasattr(dense, "num_experts")


def test_existing_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = tmp_path / "config.json"
    precious.write_text(json.dumps({"mine": 1}), encoding="utf-8")
    assert main(["make-model", "--shape", "qwen3-tiny", str(tmp_path)]) == 2
    assert f"directory: got '{tmp_path}', allowed: an empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_what_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/model"):
        assert main(["make-model", "--shape", "qwen3-tiny", str(tmp_path / name)]) == 2
        assert f"directory: got '{tmp_path / name}', allowed: an empty directory" in capsys.readouterr().err
    assert main(["make-model", "--config", str(tmp_path / "none"), str(tmp_path / "model")]) == 2
    assert f"--config: got '{tmp_path / 'none'}', allowed: a config.json" in capsys.readouterr().err
    seed = str(2**64)
    assert main(["make-model", "--shape", "qwen3-tiny", "--seed", seed, str(tmp_path / "model")]) == 2
    assert f"--seed: got {seed}, allowed: a whole number of 64 bits" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
