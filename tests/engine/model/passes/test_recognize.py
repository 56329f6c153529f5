"""Which decoders one call computes, and which are left to their modules."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.olmo3 import modeling_olmo3
from transformers.models.phi3 import modeling_phi3

from orcastream.engine.attention import NativeBackend, TorchBackend
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes import apply_passes
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import Reference, check_loaded
from tests.engine.model.passes.families import HALF, SAME_KIND, VARIANTS, multiply_result, random_model
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators


@pytest.mark.parametrize("family", ["apertus", "gpt2", "gpt_neox", "hunyuan_v1_dense"])
def test_other_kinds_are_computed_by_their_modules(family: str) -> None:
    model = random_model(family, torch.float32, pad_token_id=0)
    reference = Reference.of(model, 128)
    assert apply_passes(model)["compile_decoder"] == 0
    check_loaded(model, NativeBackend(), reference)


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("olmo", {**HALF, "eos_token_id": 2, "clip_qkv": 8.0}),
        ("olmoe", {**HALF, "num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 8.0}),
        ("llama", {"hidden_act": "gelu_10"}),
        ("llama", {"final_logit_softcapping": 30.0}),
    ],
    ids=str,
)
def test_bounds_that_few_values_reach_leave_the_model_to_its_modules(family: str, own: dict[str, Any]) -> None:
    """The last model ignores that setting."""
    model = random_model(family, torch.float32, **own)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)
    assert apply_passes(model)["compile_decoder"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_biases_do_not_hide_how_a_layer_rotates(dtype: torch.dtype) -> None:
    """In values that are hardly rotated, as some models have them."""
    model = random_model("qwen2", dtype, **SAME_KIND["qwen2"])
    with torch.no_grad():
        for layer in model.model.layers:
            for bias in (layer.self_attn.q_proj.bias, layer.self_attn.k_proj.bias):
                bias.view(-1, 2, 16)[..., -1] = 5000.0
    assert apply_passes(model)["compile_decoder"] == 1
    assert [layer.table for layer in getattr(model, ATTRIBUTE).layers] == [0, 0, 0]


def test_a_model_that_raises_while_it_is_observed_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("llama", torch.float32)
    hooks, implementation = _hooks(model), model.config._attn_implementation
    attention = model.model.layers[1].self_attn

    class Attention(type(attention)):  # type: ignore[misc]  # known only at run time
        def forward(self, *given: Any, attention_mask: Any = None, **named: Any) -> Any:
            return super().forward(*given, attention_mask=attention_mask[..., :9], **named)

    attention.__class__ = Attention
    caplog.set_level("INFO")
    assert apply_passes(model)["compile_decoder"] == 0
    assert "module by module: LlamaForCausalLM takes something else" in caplog.text
    assert (_hooks(model), model.config._attn_implementation) == (hooks, implementation)


def _hooks(model: PreTrainedModel) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_layers_that_rotate_several_widths_leave_the_model_to_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call has the angles of all layers with the same stride."""
    model = random_model("olmo3", torch.float32, **VARIANTS["olmo3"])
    rotary = model.model.rotary_emb

    class Narrow(type(rotary)):  # type: ignore[misc]  # known only at run time
        def forward(self, x: torch.Tensor, positions: torch.Tensor, layer_type: str) -> tuple[torch.Tensor, ...]:
            angles = super().forward(x, positions, layer_type)
            return tuple(each[..., :16] if layer_type == "full_attention" else each for each in angles)

    rotary.__class__ = Narrow
    monkeypatch.setattr(modeling_olmo3, "apply_rotary_pos_emb", modeling_phi3.apply_rotary_pos_emb)
    reference = Reference.of(model, 128)
    assert apply_passes(model)["compile_decoder"] == 0
    check_loaded(model, NativeBackend(), reference)


def test_the_self_check_detects_lookalikes() -> None:
    """This one has the parts of a llama, but a layer of it multiplies its result."""
    model = random_model("llama", torch.float32)
    multiply_result(model.model.layers[0])
    reference = Reference.of(model, 128)
    assert apply_passes(model)["compile_decoder"] == 1
    with pytest.raises(UnsupportedModel, match="other logits"):
        check_loaded(model, NativeBackend(), reference)
    delattr(model, ATTRIBUTE)
    check_loaded(model, NativeBackend(), reference)


def test_another_attention_backend_uses_the_modules() -> None:
    model = random_model("llama", torch.float32)
    apply_passes(model)
    assert not ModelRunner(model, TorchBackend()).is_compiled
