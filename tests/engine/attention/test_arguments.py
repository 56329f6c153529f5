"""The arguments that architectures pass to attention, and which of them are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.attention import TorchBackend
from orcastream.engine.attention.arguments import refuse_unknown
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import check_small_copy

MakeModel = Callable[..., PreTrainedModel]


class Layer(nn.Module):
    """A module that attends."""


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"block_indices": None, "whatever": None},
        {"dropout": 0.0, "is_causal": True, "position_ids": torch.zeros(1, 2)},
        {"use_cache": False, "output_attentions": False, "output_router_logits": False},
    ],
)
def test_harmless(arguments: dict[str, Any]) -> None:
    refuse_unknown(Layer(), None, arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"block_indices": torch.zeros(1)},
            "Layer hands attention the argument block_indices, which this engine does not know",
        ),
        ({"position_bias": 0}, "argument position_bias, which"),
        ({"dropout": 0.1}, "dropout=0.1, which this engine does not compute"),
        ({"position_embeddings": (1, 2)}, "argument position_embeddings, which"),
        ({"is_causal": False}, "is_causal=False, which"),
        ({"output_attentions": True}, "output_attentions=True, which"),
    ],
)
def test_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        refuse_unknown(Layer(), None, arguments)


def test_a_mask_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Layer hands attention a mask of its own"):
        refuse_unknown(Layer(), torch.zeros(1, 1, 2, 2), {})


SPARSE = {
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "layer_types": ["full_attention", "minimax_m3_sparse"],
}
BIASED = {"head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("minimax_m3_vl_text", SPARSE, "hands attention the argument block_indices"),
        ("inkling_text", BIASED, "hands attention the argument position_bias"),
        ("doge", {}, "hands attention a mask of its own"),
    ],
)
def test_found_by_the_probe(family: str, changes: dict[str, Any], reason: str, make_model: MakeModel) -> None:
    model = make_model(family, **changes)
    with pytest.raises(UnsupportedModel, match=reason):
        ModelRunner(model, TorchBackend())


def test_a_layer_that_keeps_one_more_key_for_every_128_tokens(make_model: MakeModel) -> None:
    """Two tokens do not reveal it; with short requests, a large number of them does."""
    model = make_model("deepseek_v4", head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ModelRunner(model, TorchBackend())
    with pytest.raises(UnsupportedModel, match="1032 keys and 1032 values for 1024 tokens"):
        check_small_copy(model, TorchBackend(), 64)
    with pytest.raises(UnsupportedModel, match="computes other logits in a flat batch"):
        check_small_copy(model, TorchBackend(), 256)


def test_a_model_of_an_engine_names_its_owner(make_model: MakeModel) -> None:
    model = make_model()
    OrcaEngine(EngineConfig("tiny", kv_cache_memory=1 << 20), model)
    with pytest.raises(RuntimeError, match=r"LlamaAttention is part of an engine.*set_attn_implementation"):
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device))
