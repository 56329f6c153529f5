"""Decoders computed by few kernels: their logits equal those of the modules, and other kinds are left alone."""

from typing import Any

import pytest
import torch

from orcastream.engine.attention import TritonBackend
from orcastream.engine.model.passes.fuse_decoder import FuseDecoder
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import Reference, check_loaded
from tests.engine.conftest import build

SAME_KIND: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "gelu_pytorch_tanh", "attention_bias": True},
    "mistral": {"sliding_window": 8},
    "qwen2": {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 24},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SAME_KIND)
def test_logits_equal_those_of_the_model(family: str, dtype: torch.dtype, triton_device: torch.device) -> None:
    model = build(family, **SAME_KIND[family]).to(triton_device, dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.normal_(1.0, 0.3)
    reference = Reference.of(model, 128)
    assert FuseDecoder().apply(model) == 1
    assert ModelRunner(model, TritonBackend()).is_compiled
    check_loaded(model, TritonBackend(), reference)
