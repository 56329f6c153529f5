"""Gated MLPs are fused with their own activation."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes import apply_passes
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators

MakeModel = Callable[..., PreTrainedModel]


@pytest.mark.parametrize(("activation", "fused"), [("gelu", 2), ("silu", 2), ("gelu_10", 0)])
def test_a_limited_activation_is_not_confused_with_another(make_model: MakeModel, activation: str, fused: int) -> None:
    """Normal values stay below the limit of gelu_10; those of one token in thousands may not."""
    model = make_model("llama", hidden_size=64, intermediate_size=64, hidden_act=activation).to("cpu")
    x = 20 * torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.model.layers[0].mlp(x)
        assert apply_passes(model)["fuse_gated_mlp"] == fused
        torch.testing.assert_close(model.model.layers[0].mlp(x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("activation", "name"), [("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu"), ("relu", "relu"), ("silu", "silu")]
)
def test_both_kinds_of_gelu_are_told_apart_in_16_bits(make_model: MakeModel, activation: str, name: str) -> None:
    """Rounding hides their difference in the whole MLP, and one takes far longer than the other."""
    model = make_model("llama", hidden_size=64, intermediate_size=96, hidden_act=activation).to("cpu", torch.bfloat16)
    assert apply_passes(model)["fuse_gated_mlp"] == 2
    assert [layer.mlp.activation for layer in model.model.layers] == [name] * 2


@pytest.mark.parametrize(
    ("activation", "dtype", "fused"),
    [("gelu_new", torch.float32, 2), ("gelu", torch.float32, 2), ("quick_gelu", torch.bfloat16, 0)],
)
def test_the_activation_is_recognized_where_gates_are_small(
    make_model: MakeModel, activation: str, dtype: torch.dtype, fused: int
) -> None:
    """Of normalized rows before the norm's large weights: all kinds of GELU are nearly the same there."""
    model = make_model("llama", hidden_size=64, intermediate_size=96, hidden_act=activation).to("cpu")
    for layer in model.model.layers:
        layer.mlp.gate_proj.weight.data.mul_(0.02)
    model.to(dtype)
    x = 50 * torch.randn(1, 30, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.inference_mode():
        expected = model.model.layers[0].mlp(x)
        assert apply_passes(model)["fuse_gated_mlp"] == fused
        error = (model.model.layers[0].mlp(x) - expected).float().norm() / expected.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
