"""Decoders computed by few kernels: their logits equal those of the modules, and other kinds are left alone."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import NativeBackend, TorchBackend, TritonBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes.fuse_decoder import FuseDecoder
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import Reference, check_loaded
from tests.engine.conftest import build
from tests.engine.model.passes.families import multiply_result

SAME_KIND: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "gelu_pytorch_tanh", "attention_bias": True},
    "mistral": {"sliding_window": 8},
    "qwen2": {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 24},
}


def random_model(family: str, device: torch.device, dtype: torch.dtype = torch.float32, **own: Any) -> PreTrainedModel:
    """Return a model whose norms and biases matter."""
    model: PreTrainedModel = build(family, **own).to(device, dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.normal_(1.0, 0.3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SAME_KIND)
def test_logits_equal_those_of_the_model(family: str, dtype: torch.dtype, triton_device: torch.device) -> None:
    model = random_model(family, triton_device, dtype, **SAME_KIND[family])
    reference = Reference.of(model, 128)
    assert FuseDecoder().apply(model) == 1
    assert ModelRunner(model, TritonBackend()).is_compiled
    check_loaded(model, TritonBackend(), reference)


def test_omitted_logits_change_no_others(triton_device: torch.device) -> None:
    model = random_model("qwen3", triton_device)
    reference = Reference.of(model, 128)
    assert FuseDecoder().apply(model) == 1
    runner = ModelRunner(model, TorchBackend())
    groups = group_layers(runner.shapes, 128)
    runner.allocate(groups, [40], 4)
    for wanted in ((1, 1), (0, 3), (0, 0)):
        cache = KVCache(
            groups, [40], block_size=4, max_sequences=2, max_model_len=128, longest_span=128, prefix_cache=False
        )
        spans = [
            SpanTokens(cache.sequence_of(len(ids)), ids, 0, count)
            for ids, count in zip(reference.sequences[1:3], wanted, strict=True)
        ]
        batch = FlatBatch.build(spans, cache, runner.device)
        logits, spans_of = runner.forward(batch), torch.tensor(batch.logit_spans)
        assert len(logits) == sum(wanted)
        for index, (rows, count) in enumerate(zip(reference.logits[1:3], wanted, strict=True)):
            found = logits[spans_of == index]
            torch.testing.assert_close(found, rows[len(rows) - count :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", SAME_KIND)
def test_the_modules_compute_the_same_with_merged_weights(family: str, triton_device: torch.device) -> None:
    """They read the memory of the merged weights: no weight is in memory twice."""
    model = random_model(family, triton_device, **SAME_KIND[family])
    ids = torch.arange(9, device=triton_device).unsqueeze(0)
    with torch.inference_mode():
        before = model(input_ids=ids).logits
        assert FuseDecoder().apply(model) == 1
        assert torch.equal(model(input_ids=ids).logits, before)
    decoder = getattr(model, ATTRIBUTE)
    for layer, own in zip(model.model.layers, decoder.layers, strict=True):
        for merged, parts in (
            (own.projections, (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)),
            (own.mlp.gate_up, (layer.mlp.gate_proj, layer.mlp.up_proj)),
        ):
            memory = merged.weight.untyped_storage().data_ptr()
            assert all(part.weight.untyped_storage().data_ptr() == memory for part in parts)
            assert all(part.weight.is_contiguous() for part in parts)
    assert FuseDecoder().apply(model) == 1
    assert getattr(model, ATTRIBUTE) is decoder


@pytest.mark.parametrize("family", ["cohere", "gemma2", "gpt2", "mixtral", "olmo2", "starcoder2"])
def test_other_kinds_are_computed_by_their_modules(family: str, triton_device: torch.device) -> None:
    model = random_model(family, triton_device)
    assert FuseDecoder().apply(model) == 0
    assert not ModelRunner(model, TorchBackend()).is_compiled


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_activations_without_a_kernel_are_computed_by_the_modules(activation: str, triton_device: torch.device) -> None:
    model = random_model("llama", triton_device, hidden_act=activation)
    assert FuseDecoder().apply(model) == 0


_FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@pytest.mark.parametrize(
    ("rope", "is_same_kind"),
    [
        ({"rope_type": "linear", "factor": 4.0}, True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, True),
        ({"rope_type": "dynamic", "factor": 4.0}, False),
        ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32, **_FACTORS}, False),
    ],
    ids=lambda each: each["rope_type"] if isinstance(each, dict) else "",
)
def test_angles_that_depend_on_the_longest_position_are_another_kind(
    rope: dict[str, Any], is_same_kind: bool, triton_device: torch.device
) -> None:
    model = random_model("llama", triton_device, rope_parameters={"rope_theta": 1e4, **rope})
    reference = Reference.of(model, 128)
    assert FuseDecoder().apply(model) == is_same_kind
    if is_same_kind:
        check_loaded(model, TorchBackend(), reference)


def test_a_layer_with_a_hook_is_another_kind(triton_device: torch.device) -> None:
    """The hook would not be called."""
    model = random_model("llama", triton_device)
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: None)
    assert FuseDecoder().apply(model) == 0


def test_the_self_check_detects_lookalikes(triton_device: torch.device) -> None:
    """This one has the parts of a llama, but a layer of it multiplies its result."""
    model = random_model("llama", triton_device)
    multiply_result(model.model.layers[0])
    reference = Reference.of(model, 128)
    assert FuseDecoder().apply(model) == 1
    with pytest.raises(UnsupportedModel, match="other logits"):
        check_loaded(model, TorchBackend(), reference)
    delattr(model, ATTRIBUTE)
    check_loaded(model, TorchBackend(), reference)


def test_the_native_backend_does_not_take_its_weights(triton_device: torch.device) -> None:
    from orcastream.engine.model.compiled_decoder import CompiledDecoder

    model = random_model("llama", triton_device)
    assert FuseDecoder().apply(model) == 1
    assert CompiledDecoder.of(model, NativeBackend()) is None
