"""Architectures whose decoders one call computes, and small random models of them."""

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 131,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 4, "moe_intermediate_size": 32}
GROUPED = EXPERTS | {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7}
SAME_KIND: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2": {"head_dim": None, "hidden_size": 128},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 40,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
    },
    "qwen2_moe": EXPERTS | {"head_dim": None, "num_experts": 16, "shared_expert_intermediate_size": 64},
    "glm4_moe": GROUPED | {"use_qk_norm": True, "pad_token_id": 0},
}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
HALF = {"head_dim": None, "hidden_size": 128}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
_SEEING = {
    "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
}
VARIANTS: dict[str, dict[str, Any]] = {
    "arcee": {},
    "cohere": {**HALF, "pad_token_id": 0, "logit_scale": 0.3},
    "cohere2": {**_SLIDING, "pad_token_id": 0},
    "ernie4_5": {"pad_token_id": 0},
    "exaone4": {**_SLIDING, "pad_token_id": 0},
    "gemma": {},
    "gemma2": {**_SLIDING, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gpt_oss": {**_SLIDING, "num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": _YARN},
    "gemma3": {**_SEEING, "text_config": {**SIZES, **_SLIDING, "tie_word_embeddings": True}, "pad_token_id": 0},
    "gemma3_text": {**_SLIDING, "tie_word_embeddings": True},
    "glm": {"pad_token_id": 0},
    "glm4": {"pad_token_id": 0},
    "granite": {**HALF, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 3.0},
    "granitemoe": {**HALF, "num_local_experts": 5, "num_experts_per_tok": 2, "residual_multiplier": 0.5},
    "jais2": {},
    "nemotron": {**HALF, "hidden_act": "relu2"},
    "olmo": {**HALF, "eos_token_id": 2},
    "olmo2": {**HALF},
    "olmo3": {**HALF, **_SLIDING},
    "olmoe": {**HALF, "num_experts": 5, "num_experts_per_tok": 2},
    "phi": {**HALF},
    "phi3": {**HALF, "partial_rotary_factor": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "seed_oss": {"pad_token_id": 0},
    "smollm3": {**HALF, "no_rope_layers": [1, 0, 1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "stablelm": {**HALF, "use_qkv_bias": True},
    "starcoder2": {**HALF, "hidden_act": "relu"},
}
"""Other norms, activations, factors, rotated neighbors, and layers that rotate nothing or by angles of their own."""


def random_model(family: str, dtype: torch.dtype, **own: Any) -> PreTrainedModel:
    """Return a model of the family with weights that tell its parts apart; None leaves a setting at its default."""
    options = {name: value for name, value in {**SIZES, **own}.items() if value is not None}
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[family](**options), attn_implementation="eager"
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("correction_bias"):
                weight.uniform_(0, 0.3)
            elif name.endswith(("norm.weight", "bias")):
                weight.normal_(1.0, 0.3)
            else:
                weight.mul_(3)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.uniform_(0, 0.3)
    return model.to(dtype).eval()


def multiply_result(layer: Any) -> None:
    """Let a layer multiply its result, which its parts do not tell."""

    class Layer(type(layer)):  # type: ignore[misc]  # known only at run time
        def forward(self, *given: Any, **named: Any) -> Any:
            return super().forward(*given, **named) * 1.02

    layer.__class__ = Layer
