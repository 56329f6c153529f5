"""A model computes the same with all passes as without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model import prepare
from orcastream.engine.model.passes import apply_passes, pack_linears
from orcastream.engine.model.passes.compact_weights import CompactWeights
from orcastream.engine.model.passes.pack_linears import PackedEmbedding, packed_layers, packed_memory
from orcastream.engine.native.linear import PackedLinear
from orcastream.schemas.sampling import SamplingParams
from tests.engine.model.survey import tiny_model
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators

FAMILIES = ("llama", "qwen3", "gemma2", "mistral", "phi3", "gpt2")
MakeModel = Callable[..., PreTrainedModel]


@torch.inference_mode()
def logits(model: PreTrainedModel, tokens: int) -> torch.Tensor:
    """Return the logits of a random sequence."""
    model.set_attn_implementation("eager")
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same(make_model: MakeModel, family: str, dtype: torch.dtype) -> None:
    """Linear layers are replaced in every architecture, and logits differ by rounding."""
    model = make_model(family).to("cpu", dtype)
    expected = [logits(model, tokens) for tokens in (1, 3, 40)]
    replaced = apply_passes(model)
    assert replaced["pack_linears"] >= 2 * model.config.num_hidden_layers + 1
    for tokens, plain in zip((1, 3, 40), expected, strict=True):
        error = (logits(model, tokens) - plain).float().norm() / (plain - plain.mean(-1, keepdim=True)).float().norm()
        assert error < (1e-4 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("name", ["gemma4", "hunyuan_v1_moe"])
def test_a_model_that_reads_weights_outside_products_computes_the_same(name: str) -> None:
    """Gemma 4 reads the row of the padding token in its embedding, the router of Hunyuan the type of its own weight."""
    model = tiny_model(name)
    assert model is not None
    expected = logits(model, 40)
    assert apply_passes(model)["pack_linears"]
    assert isinstance(model.get_input_embeddings(), PackedEmbedding) == (name == "gemma4")
    error = (logits(model, 40) - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm()
    assert error < 1e-4


def test_the_passes_of_a_qwen3(make_model: MakeModel) -> None:
    """All linear layers are packed, layers with the same input merged, norms and MLPs fused."""
    model = make_model("qwen3").to("cpu")
    layers = model.config.num_hidden_layers
    replaced = apply_passes(model)
    assert replaced["pack_linears"] == 7 * layers + 1
    assert replaced["fuse_norm"] == 4 * layers + 1
    assert not any(isinstance(module, nn.Linear) for module in model.modules())


def test_a_tied_embedding_shares_the_packed_weight(make_model: MakeModel) -> None:
    """There is only one copy of the weight."""
    model = make_model("qwen3", tie_word_embeddings=True).to("cpu")
    apply_passes(model)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, PackedEmbedding)
    assert embedding.packed is model.lm_head.packed


@pytest.mark.parametrize("instruction_set", ["amx", "avx512_bf16"], indirect=True)
@pytest.mark.usefixtures("computes_with")
def test_compact_weights_are_shared_as_packed_ones_are(make_model: MakeModel) -> None:
    """All layers adopt them, merged ones, too; logits differ by the order in which a few products are added."""
    model = make_model("qwen3", tie_word_embeddings=True, hidden_size=256).to("cpu", torch.bfloat16)
    apply_passes(model)
    assert not any(packed.is_compact for _, packed in packed_layers(model))  # they are few
    expected = [logits(model, tokens) for tokens in (1, 20, 40)]
    num_bytes = sum(len(each) for each in packed_memory(model))
    assert CompactWeights(least_bytes=0).apply(model) == len(packed_layers(model))
    assert model.get_input_embeddings().packed is model.lm_head.packed
    assert sum(len(each) for each in packed_memory(model)) < 0.8 * num_bytes
    for tokens, plain in zip((1, 20, 40), expected, strict=True):
        error = (logits(model, tokens) - plain).float().norm() / (plain - plain.mean(-1, keepdim=True)).float().norm()
        assert error < 0.02
    assert CompactWeights(least_bytes=0).apply(model) == 0


def test_a_model_whose_weights_are_all_packed_keeps_its_dtype(make_model: MakeModel) -> None:
    """The norms of OLMo have no weights, and the embedding is that of the packed head."""
    model = make_model("olmo", tie_word_embeddings=True).to("cpu", torch.bfloat16)
    expected = logits(model, 40)
    assert apply_passes(model)["pack_linears"] == 7 * model.config.num_hidden_layers + 1
    assert (model.dtype, model.device.type) == (torch.bfloat16, "cpu")
    assert (logits(model, 40) - expected).float().norm() / expected.float().norm() < 0.05


def test_int8_keeps_a_tied_embedding(make_model: MakeModel) -> None:
    """Only the multiplied weights are rounded, and logits stay close."""
    model = make_model("qwen3", tie_word_embeddings=True, hidden_size=128).to("cpu")
    expected = logits(model, 20)
    apply_passes(model, int8=True)
    assert type(model.get_input_embeddings()) is nn.Embedding
    assert model.lm_head.packed.dtype == torch.int8
    error = (logits(model, 20) - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm()
    assert 1e-4 < error < 0.1


def test_a_module_with_a_hook_is_left_alone(make_model: MakeModel) -> None:
    """Its replacement would not call the hook."""
    model = make_model("llama").to("cpu")
    model.lm_head.register_forward_hook(lambda *_: None)
    apply_passes(model)
    assert type(model.lm_head) is nn.Linear


def generated(**settings: Any) -> list[tuple[int, ...]]:
    """Greedy answers of the demo model."""
    engine = OrcaEngine.load(EngineConfig(str(demo.MODEL_DIR), dtype="float32", device="cpu", **settings))
    prompts = [[1, 17, 42], [1, 9], list(range(5, 60))]
    done = engine.generate(prompts, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    return [tuple(each.output_ids) for each in done]


def test_an_engine_generates_the_same_with_and_without() -> None:
    """In float32."""
    assert generated(model_passes="auto") == generated(model_passes="off")


def test_passes_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The self-check detects a replacement that computes something else, and the model is reloaded."""
    expected = generated(model_passes="off")

    def spoil(model: PreTrainedModel, added: object) -> dict[str, int]:
        factor = torch.rand(model.config.vocab_size)
        model.lm_head.register_forward_hook(lambda module, args, logits: logits * factor)
        return {"spoil": 1}

    monkeypatch.setattr(prepare, "fuse_modules", spoil)
    assert generated() == expected
    assert "computed without them" in caplog.text


def test_layers_that_a_model_cannot_run_with_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, a model that inspects its layers: it is reloaded and runs without passes."""
    expected = generated(model_passes="off")

    def unfit(model: PreTrainedModel, int8: bool) -> dict[str, int]:
        model.lm_head.register_forward_pre_hook(lambda layer, args: layer.no_such_attribute)
        return {"unfit": 1}

    monkeypatch.setattr(prepare, "pack_linears", unfit)
    assert generated() == expected
    assert "computed without them" in caplog.text


def test_weights_that_do_not_fit_8_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, whether the model is checked or not."""
    monkeypatch.setattr(prepare, "pack_linears", lambda model, int8: {"pack_linears": 0})
    for self_check in (True, False):
        with pytest.raises(UnsupportedModel, match=r"weight_dtype: got .int8., allowed .*: auto \(no linear"):
            generated(weight_dtype="int8", self_check=self_check)


def test_a_faulty_copy_is_found_in_a_layer_with_a_common_shape(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first layer of a shape is checked more thoroughly, and every layer for its values."""
    model = make_model("qwen3").to("cpu")
    broken = model.model.layers[-1].mlp.up_proj
    pack = PackedLinear.pack

    def pack_wrongly(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        return pack(weight.flip(0) if weight is broken.weight else weight, bias)

    monkeypatch.setattr(PackedLinear, "pack", pack_wrongly)
    assert pack_linears(model)["pack_linears"] == 7 * model.config.num_hidden_layers
    assert model.model.layers[-1].mlp.up_proj is broken
    assert f"layers.{len(model.model.layers) - 1}.mlp.up_proj stays as it is" in caplog.text


def test_a_caller_supplied_model_is_not_changed(make_model: MakeModel, make_engine: Callable[..., OrcaEngine]) -> None:
    """The model belongs to the caller."""
    model = make_model("llama")
    make_engine(model)
    assert type(model.lm_head) is nn.Linear


def test_an_engine_generates_in_int8() -> None:
    """Most tokens are the same."""
    plain, rounded = generated(model_passes="off"), generated(weight_dtype="int8")
    same = [a == b for one, other in zip(plain, rounded, strict=True) for a, b in zip(one, other, strict=True)]
    assert sum(same) > len(same) // 3


def test_the_settings_are_checked() -> None:
    """By name."""
    with pytest.raises(ValueError, match="weight_dtype: got 'int8', allowed with model_passes off: auto"):
        EngineConfig("x", model_passes="off", weight_dtype="int8")
    with pytest.raises(ValueError, match="model_passes: got 'on', allowed: auto, off"):
        EngineConfig("x", model_passes="on")  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_still_refused(tmp_path: Path) -> None:
    """Before any pass."""
    with pytest.raises((UnsupportedModel, OSError)):
        OrcaEngine.load(EngineConfig(str(tmp_path)))
