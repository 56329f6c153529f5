"""Packed experts compute what the model's own do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine
from orcastream.engine.model.passes import apply_passes, pack_linears
from orcastream.engine.model.passes.compact_weights import CompactWeights
from orcastream.engine.model.passes.pack_experts import FusedGate, PackedExperts, PackExperts
from orcastream.engine.model.passes.pack_linears import packed_groups, packed_layers, packed_memory
from orcastream.engine.native.linear import PackedLinear
from tests.engine.model.passes.test_passes import logits
from tests.engine.model.survey import tiny_model
from tests.engine.needs_operators import needs_operators
from tests.engine.test_equivalence import UNUSUAL, run_with_arrivals

pytestmark = needs_operators

MODELS = (
    *("qwen3_moe", "mixtral", "olmoe", "deepseek_v2", "glm4_moe", "minimax_m2"),
    "gpt_oss",  # transposed weights, gates and ups alternating, biases, a gate of its own
    "aria_text",  # transposed weights
    "nemotron_h",  # no gate
)


def own_experts(model: PreTrainedModel) -> PreTrainedModel:
    """Let the model compute its experts one by one: other implementations need sizes that a tiny model lacks."""
    model.config._experts_implementation = "eager"
    return model


def tiny(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = tiny_model(name)
    assert model is not None
    return own_experts(model.to(dtype))


def packed_experts(model: PreTrainedModel) -> list[PackedExperts]:
    return [module for module in model.modules() if isinstance(module, PackedExperts)]


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    spread = (expected - expected.mean(-1, keepdim=True)).float().norm()
    return float((found - expected).float().norm() / spread)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same(name: str, dtype: torch.dtype) -> None:
    """Whatever form its experts have. The original weights are gone."""
    model = tiny(name, dtype)
    expected = [logits(model, tokens) for tokens in (1, 40)]
    replaced = apply_passes(model)["pack_experts"]
    assert replaced == len(packed_experts(model)) > 0
    assert not any(name.endswith(("gate_up_proj", "down_proj")) for name, _ in model.named_parameters())
    for tokens, plain in zip((1, 40), expected, strict=True):
        assert error_of(logits(model, tokens), plain) < (1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_a_gate_is_one_operator(name: str) -> None:
    """Also if gates and ups alternate in the weights, and are clamped."""
    model = tiny(name)
    apply_passes(model)
    assert all(isinstance(each.gate, FusedGate) for each in packed_experts(model))


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_an_engine_generates_the_same(
    make_model: Callable[..., PreTrainedModel],
    make_engine: Callable[..., OrcaEngine],
    greedy_reference: Callable[..., Any],
    family: str,
) -> None:
    """Whatever is batched, chunked or preempted."""
    model = make_model(family, **UNUSUAL.get(family, {})).to("cpu")
    prompts = [(tuple(range(start, start + length)), 12) for start, length in ((3, 20), (9, 1), (5, 33), (7, 8))]
    expected = [greedy_reference(model, prompt, number) for prompt, number in prompts]
    assert apply_passes(own_experts(model))["pack_experts"] == model.config.num_hidden_layers
    engine = make_engine(model, num_blocks=13, max_num_batched_tokens=8)
    assert run_with_arrivals(engine, prompts) == expected
    assert engine.stats().preemptions > 0


def test_experts_in_8_bits_are_close() -> None:
    """They are linear layers like others."""
    model = tiny("qwen3_moe")
    expected = logits(model, 40)
    assert pack_linears(model, int8=True)["pack_experts"] == len(packed_experts(model))
    assert all(one.dtype == torch.int8 for _, group in packed_groups(model) for one in group.linears)
    assert 1e-5 < error_of(logits(model, 40), expected) < 0.1


@pytest.mark.parametrize("instruction_set", ["amx", "avx512_bf16"], indirect=True)
@pytest.mark.usefixtures("computes_with")
def test_experts_become_compact_with_the_other_layers() -> None:
    model = tiny("mixtral", torch.bfloat16)
    apply_passes(model)
    expected = logits(model, 40)
    before = [memory.nbytes for memory in packed_memory(model)]
    layers = [one for _, group in packed_groups(model) for one in group.linears]
    assert CompactWeights(least_bytes=0).apply(model) == len(layers) + len(packed_layers(model))
    assert all(one.is_compact for one in layers)
    after = [memory.nbytes for memory in packed_memory(model)]
    assert len(before) == len(after) == len(packed_layers(model)) + len(packed_groups(model))
    assert sum(after) < 0.8 * sum(before)
    assert error_of(logits(model, 40), expected) < 0.02


def test_sizes_that_the_models_own_products_refuse_are_computed() -> None:
    """torch's grouped product needs rows of multiples of 16 bytes."""
    model = tiny("qwen3_moe", torch.bfloat16)
    for layer in model.model.layers:
        own = layer.mlp.experts
        own.gate_up_proj = nn.Parameter(own.gate_up_proj[:, :12], requires_grad=False)
        own.down_proj = nn.Parameter(own.down_proj[..., :6], requires_grad=False)
    expected = logits(model, 40)
    model.config._experts_implementation = "grouped_mm"
    with torch.inference_mode():
        assert PackExperts().apply(model) == len(packed_experts(model)) > 0
    assert model.config._experts_implementation == "grouped_mm"
    assert error_of(logits(model, 40), expected) < 0.05


def test_experts_that_compute_otherwise_stay(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With a log line."""
    model = tiny("mixtral")
    pack = PackedLinear.pack

    def pack_wrongly(weight: torch.Tensor, *others: Any, **named: Any) -> PackedLinear:
        return pack(weight.flip(0), *others, **named)

    expected = logits(model, 40)
    monkeypatch.setattr(PackedLinear, "pack", pack_wrongly)
    with torch.inference_mode():
        assert PackExperts().apply(model) == 0
    assert "model.layers.0.mlp.experts stays as it is" in caplog.text
    assert torch.equal(logits(model, 40), expected)
