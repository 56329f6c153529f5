"""Saved models that are damaged afterwards: each is refused in one line that names what is wrong."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.cli import main
from orcastream.engine.model.load import load_model, load_model_config
from orcastream.engine.model.quiet import quiet
from tests.engine.conftest import build

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]
UP = "model.layers.1.mlp.up_proj.weight"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny model; `shard` splits its weights into files of that size."""

    def write(family: str = "llama", shard: str | None = None, **changes: Any) -> Path:
        with quiet():
            build(family, **changes).save_pretrained(tmp_path, max_shard_size=shard or "1GB")
        return tmp_path

    return write


def edit(folder: Path, change: Callable[[Tensors], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def configure(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def load(folder: Path) -> PreTrainedModel:
    settings = EngineConfig(str(folder), device="cpu")
    return load_model(settings, load_model_config(settings), CPU)


def refusal(folder: Path, error: type[Exception] = UnsupportedModel) -> str:
    """Return why the model is not loaded: one line that contains the directory."""
    with pytest.raises(error) as caught:
        load(folder)
    reason = str(caught.value)
    assert "\n" not in reason
    assert str(folder) in reason
    return reason


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_missing_weight_is_named(save: Callable[..., Path]) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.pop(UP))
    assert refusal(folder).endswith(f"the checkpoint lacks {UP}")


def test_a_missing_head_that_is_not_tied(save: Callable[..., Path]) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.pop(HEAD))
    assert refusal(folder).endswith(f"lacks {HEAD}")


def test_many_missing_weights_are_counted(save: Callable[..., Path]) -> None:
    folder = save()
    configure(folder, num_hidden_layers=3)
    assert "lacks model.layers.2.input_layernorm.weight, " in refusal(folder)
    assert refusal(folder).endswith(" and 6 more")


@pytest.mark.parametrize("kept", [EMBEDDING, HEAD])
def test_either_of_two_tied_weights_is_enough(kept: str, save: Callable[..., Path]) -> None:
    folder = save(tie_word_embeddings=True)
    edit(folder, lambda tensors: tensors.update({kept: tensors.pop(EMBEDDING)}))
    model = load(folder)
    assert torch.equal(model.get_output_embeddings().weight, load_file(folder / "model.safetensors")[kept])


def test_both_of_two_tied_weights_missing(save: Callable[..., Path]) -> None:
    folder = save(tie_word_embeddings=True)
    edit(folder, lambda tensors: tensors.pop(EMBEDDING))
    assert EMBEDDING in refusal(folder)


def test_a_wrong_shape(save: Callable[..., Path]) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
    assert "model.norm.weight has the shape (31,), the configuration says (32,)" in refusal(folder)


@pytest.mark.parametrize("damage", [None, torch.ones(3, 3)])
def test_a_missing_or_misshapen_expert(damage: torch.Tensor | None, save: Callable[..., Path]) -> None:
    folder = save("mixtral")
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    edit(folder, lambda tensors: tensors.pop(name) if damage is None else tensors.update({name: damage}))
    assert "parts of model.layers.1.mlp.experts.gate_up_proj are missing or do not fit together" in refusal(folder)


def test_tensors_that_nothing_uses_are_logged(save: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    folder = save()
    extra = [f"model.extra{number}.weight" for number in range(5)]
    edit(folder, lambda tensors: tensors.update({name: torch.ones(1) for name in extra}))
    with caplog.at_level(logging.WARNING, "engine"):
        load(folder)
    assert f"{', '.join(extra[:3])} and 2 more" in caplog.text


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_fewer_layers_in_the_configuration_than_in_the_checkpoint(family: str, save: Callable[..., Path]) -> None:
    folder = save(family)
    configure(folder, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 1})
    assert "the checkpoint has more layers than its configuration says: " in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool])
def test_integer_weights_that_no_configuration_explains(dtype: torch.dtype, save: Callable[..., Path]) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.update({UP: tensors[UP].to(dtype)}))
    assert f"model.safetensors: {UP} is " in refusal(folder)
    assert refusal(folder).endswith("allowed: floating point, or a quantization_config that says how to read it")


def test_integer_weights_that_are_pickled(save: Callable[..., Path]) -> None:
    folder = save()
    weights = folder / "model.safetensors"
    torch.save(load_file(weights) | {UP: torch.ones(48, 32, dtype=torch.int8)}, folder / "pytorch_model.bin")
    weights.unlink()
    assert f"pytorch_model.bin: {UP} is int8" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_floating_point(dtype: torch.dtype, save: Callable[..., Path]) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.update({UP: tensors[UP].to(dtype), "model.extra": torch.ones(1).char()}))
    load(folder)


def test_a_bias_that_the_configuration_leaves_out(save: Callable[..., Path]) -> None:
    folder = save()
    name = "model.layers.0.self_attn.q_proj.bias"
    edit(folder, lambda tensors: tensors.update({name: torch.ones(32)}))
    assert f"weights that its configuration leaves out: {name}" in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"x" * 1000, None])
def test_damaged_weights(content: bytes | None, save: Callable[..., Path]) -> None:
    path = save() / "model.safetensors"
    truncate(path) if content is None else path.write_bytes(content)
    assert f"{path}: damaged or cut short" in refusal(path.parent)


def test_weights_that_cannot_be_read_are_not_called_damaged(save: Callable[..., Path]) -> None:
    path = save() / "model.safetensors"
    path.unlink()
    path.symlink_to("nowhere")
    assert f"{path}: cannot be read (No such file or directory)" in refusal(path.parent)


def test_damaged_pickled_weights(save: Callable[..., Path]) -> None:
    folder = save()
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    load(folder)
    truncate(folder / "pytorch_model.bin")
    assert "pytorch_model.bin: damaged or cut short" in refusal(folder)


def test_shards(save: Callable[..., Path]) -> None:
    folder = save(shard="10KB")
    load(folder)
    shards = sorted(folder.glob("*.safetensors"))
    truncate(shards[1])
    assert f"{shards[1]}: damaged or cut short" in refusal(folder)
    shards[1].unlink()
    assert shards[1].name in refusal(folder, OSError)
    (folder / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json: damaged" in refusal(folder)


def test_an_index_without_its_entries(save: Callable[..., Path]) -> None:
    folder = save(shard="10KB")
    (folder / "model.safetensors.index.json").write_text("{}")
    assert refusal(folder).endswith(": no entry 'weight_map'")


def test_an_unknown_activation(save: Callable[..., Path]) -> None:
    folder = save()
    configure(folder, hidden_act="nope")
    assert refusal(folder).endswith(": no entry 'nope'")


def test_no_weights_at_all(save: Callable[..., Path]) -> None:
    folder = save()
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder, OSError)


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"quant_method": "magic"}, "quantization_config.quant_method: got 'magic', allowed: aqlm, "),
        ({"bits": 4}, "quantization_config.quant_method: got None, allowed: aqlm, "),
        ({"quant_method": "gptq", "bits": 4}, "optimum"),  # which is not installed
    ],
)
def test_quantization(quantization: dict[str, Any], reason: str, save: Callable[..., Path]) -> None:
    folder = save()
    configure(folder, quantization_config=quantization)
    assert reason in refusal(folder)


def test_packed_experts_that_the_configuration_explains(save: Callable[..., Path]) -> None:
    """As in gpt-oss: without a GPU, transformers unpacks the experts and forgets that they were packed."""
    pytest.importorskip("accelerate")
    folder = save("gpt_oss", num_local_experts=4, num_experts_per_tok=2, hidden_size=32, intermediate_size=64)
    key = "model.layers.0.mlp.experts.down_proj"
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    packed = torch.randint(256, (4, 32, 2, 16), dtype=torch.uint8)
    exponents = torch.randint(120, 126, (4, 32, 2), dtype=torch.uint8)

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("down_proj", "gate_up_proj"))]:
            experts, inner, outer = tensors.pop(name).shape
            tensors[f"{name}_blocks"] = torch.zeros(experts, outer, inner // 32, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.full((experts, outer, inner // 32), 127, dtype=torch.uint8)
        tensors |= {f"{key}_blocks": packed, f"{key}_scales": exponents}

    edit(folder, pack)
    configure(folder, quantization_config={"quant_method": "mxfp4"})
    pairs = torch.stack([numbers[(packed & 15).long()], numbers[(packed >> 4).long()]], dim=-1).flatten(-2)
    expected = (pairs * 2.0 ** (exponents.float() - 127).unsqueeze(-1)).flatten(-2).transpose(1, 2)
    assert torch.equal(load(folder).get_parameter(key).float(), expected)


@pytest.mark.parametrize(("block", "fits"), [([16, 16], True), ([128, 128], True), ([24, 48], False)])
def test_blocks_that_share_a_scale_fill_the_weights(block: list[int], fits: bool, save: Callable[..., Path]) -> None:
    """Of 32 rows the first 24 share a scale, which could be mistaken for two groups of 16."""
    pytest.importorskip("accelerate")
    folder = save(hidden_size=32, intermediate_size=48)
    weights: dict[str, torch.Tensor] = {}

    def pack(tensors: Tensors) -> None:
        for name in [name for name in tensors if "_proj" in name]:
            rows, columns = tensors[name].shape
            scales = torch.rand(-(-rows // block[0]), -(-columns // block[1])) + 0.5
            spread = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)
            weights[name] = tensors[name].float() * spread
            tensors[f"{name}_scale_inv"] = scales

    edit(folder, pack)
    configure(folder, quantization_config={"quant_method": "fp8", "weight_block_size": block})
    if fits:
        torch.testing.assert_close(load(folder).get_parameter(UP), weights[UP])
    else:
        assert "weight_block_size: got [24, 48], allowed" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "[]", "\ufffe", '{"model_type": "llama", "hidden_size": "x"}'])
def test_an_unreadable_configuration(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises((UnsupportedModel, OSError)) as caught:
        load(tmp_path)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreadable_generation_configuration(save: Callable[..., Path]) -> None:
    folder = save()
    (folder / "generation_config.json").write_text("{")
    assert "generation_config.json" in refusal(folder)


def test_not_a_causal_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    assert refusal(tmp_path).endswith("T5Config is not a causal language model that transformers knows")


AUTO_MAP = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}


def test_custom_code_never_prompts_the_user(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(prompt: str = "") -> str:
        raise AssertionError(prompt)

    monkeypatch.setattr("builtins.input", ask)
    folder = save()
    configure(folder, auto_map=AUTO_MAP)
    load(folder)  # transformers knows the architecture
    configure(folder, auto_map=AUTO_MAP, model_type="own")
    assert refusal(folder).endswith("wants to run code of its own (auto_map), which is never done")


def test_the_command_prints_one_line_and_reads_no_stdin(save: Callable[..., Path]) -> None:
    folder = save()
    configure(folder, auto_map=AUTO_MAP, model_type="own")
    command = [sys.executable, "-m", "orcastream.engine", "--model", str(folder), "--prompt-ids", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        complaint = process.stderr.read()  # the process ends although its stdin stays open
        assert process.wait() == 2
    assert complaint.count("\n") == 1
    assert "code of its own" in complaint


def test_a_damaged_model_is_one_line_on_the_command_line(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save()
    edit(folder, lambda tensors: tensors.pop(UP))
    assert main(["--model", str(folder), "--prompt-ids", "1", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"error: {folder}: the checkpoint lacks {UP}\n"


def test_load_runs_the_self_check(save: Callable[..., Path]) -> None:
    folder = save("phimoe", num_local_experts=4, sliding_window=100)
    with pytest.raises(UnsupportedModel, match="sliding_window=100"):
        OrcaEngine.load(EngineConfig(str(folder), device="cpu"))
    engine = OrcaEngine.load(EngineConfig(str(folder), device="cpu", self_check=False))
    assert OrcaEngine(engine.config, engine.model).limits == engine.limits
