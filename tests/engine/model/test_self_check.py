"""Which models the engine refuses to load, with which reason, and which it accepts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.attention import TorchBackend
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.model.self_check import Reference, SmallCopy, check_loaded, check_model, check_small_copy
from orcastream.engine.model.tiny_copy import thresholds, tiny_copy

MakeModel = Callable[..., PreTrainedModel]

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bloom", {}, "alibi"),
    ("falcon", {"alibi": True}, "alibi"),
    ("mamba", {}, "0 of 2 layers call the attention interface"),
    (
        "deepseek_v32",
        {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        r"choose the tokens to attend to \(index_topk\)",
    ),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, "1 of 2 layers"),
    (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0] * 4,
            },
        },
        "longrope.*at most 32",
    ),
    (
        "llama4_text",
        {"attention_chunk_size": 16, "intermediate_size_mlp": 32, "head_dim": 8, "num_local_experts": 2},
        "attention_chunk_size=16.*max_model_len of at most 16",
    ),
    (
        "qwen2_moe",
        {
            "use_sliding_window": True,
            "sliding_window": 64,
            "max_window_layers": 1,
            "shared_expert_intermediate_size": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 32,
            },
            **EXPERTS,
        },
        # Not the original length, which is kept.
        "does not keep sliding_window=64 in a flat batch.*at most 64",
    ),
    ("phimoe", {"sliding_window": 100, "num_local_experts": 4}, "sliding_window=100"),
]


@pytest.mark.parametrize(("family", "changes", "reason"), REFUSED, ids=[family for family, _, _ in REFUSED])
def test_refused_with_the_reason(family: str, changes: dict[str, Any], reason: str, make_model: MakeModel) -> None:
    model = make_model(family, **changes)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        check_model(model, TorchBackend(), 128)
    assert caught.value.reason == str(caught.value)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    # Scales only beyond max_position_embeddings, the most that max_model_len can be.
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    # Has the same name, but one factor for any length.
    (
        "hunyuan_v1_dense",
        {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 1e3, "rope_theta": 1e4}},
    ),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "rope_theta": 1e4,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    (
        "qwen3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    ("mistral", {"sliding_window": 100}),
    ("gemma2", {"head_dim": 16, "sliding_window": 100}),
    ("gemma3_text", {"head_dim": 16, "sliding_window": 100, "num_hidden_layers": 7}),
    ("gpt2", {}),
    ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 32}),
    ("mixtral", {"num_local_experts": 4, "sliding_window": 100}),
    ("starcoder2", {"sliding_window": 100}),
    ("granite", {}),
    ("stablelm", {}),
    (
        "gemma4_text",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 100,
            "num_hidden_layers": 7,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 96,
        },
    ),
    ("gpt_neox", {}),
]


@pytest.mark.parametrize(("family", "changes"), ACCEPTED)
def test_accepted(family: str, changes: dict[str, Any], make_model: MakeModel) -> None:
    check_model(make_model(family, **changes), TorchBackend(), 128)


@pytest.mark.parametrize(
    ("family", "changes", "longest"),
    [(family, changes, 32) for family, changes, _ in REFUSED if family == "phi3"]
    + [(family, changes, 16) for family, changes, _ in REFUSED if family == "llama4_text"]
    + [(family, changes, 64) for family, changes, _ in REFUSED if family == "qwen2_moe"],
)
def test_accepted_where_max_model_len_stays_below_the_threshold(
    family: str, changes: dict[str, Any], longest: int, make_model: MakeModel
) -> None:
    model = make_model(family, **changes)
    check_model(model, TorchBackend(), longest)
    with pytest.raises(UnsupportedModel):
        check_model(model, TorchBackend(), longest + 1)


def test_some_faults_show_only_in_the_loaded_weights(make_model: MakeModel) -> None:
    """A module that mixes neighboring tokens of the stream, which no configuration reveals."""
    model = make_model()
    check_loaded(model, TorchBackend(), Reference.of(model, 128))
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: output + output.roll(1, dims=1))
    with pytest.raises(UnsupportedModel, match="on the loaded weights"):
        check_loaded(model, TorchBackend(), Reference.of(model, 128))


def test_weights_that_are_not_numbers_are_named_as_the_reason(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(UnsupportedModel, match=r"logits in float32 that are not finite.*weights are damaged"):
        check_loaded(model, TorchBackend(), Reference.of(model, 128))


def test_the_small_copy_reveals_a_backend_that_ignores_the_window(make_model: MakeModel) -> None:
    class Forgetful(TorchBackend):
        def plan(self, batch: FlatBatch, dtype: torch.dtype) -> Any:
            return super().plan(
                replace(batch, groups=tuple(replace(each, window=None) for each in batch.groups)), dtype
            )

    model = make_model("mistral", sliding_window=100)
    # The check is shorter than the window: the loaded weights cannot tell.
    check_loaded(model, Forgetful(), Reference.of(model, 128))
    with pytest.raises(UnsupportedModel, match="sliding_window=100"):
        check_small_copy(model, Forgetful(), 128)


def test_models_shorter_than_the_check(make_model: MakeModel) -> None:
    model = make_model("gpt2", max_position_embeddings=10)
    check_model(model, TorchBackend(), 10)
    engine = OrcaEngine(EngineConfig("tiny", kv_cache_memory=1 << 20), model)
    assert engine.limits.max_model_len == 10


def test_the_check_changes_no_global_random_state(make_model: MakeModel) -> None:
    model = make_model()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check_model(model, TorchBackend(), 128)
    assert torch.equal(torch.get_rng_state(), before)


def test_small_copy_of_a_large_configuration(make_model: MakeModel) -> None:
    model = make_model("gemma3_text", head_dim=16, sliding_window=100, num_hidden_layers=8)
    model.config.hidden_size, model.config.intermediate_size, model.config.vocab_size = 5120, 20480, 250_000
    tiny = tiny_copy(model, ["sliding_window"])
    assert sum(parameter.numel() for parameter in tiny.parameters()) < 1_000_000
    assert set(tiny.config.layer_types) == set(model.config.layer_types)
    assert tiny.config.sliding_window < 32
    assert model.config.sliding_window == 100


SHARING = {
    "num_hidden_layers": 35,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
}
EXPERTS_OF_MANY = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma4_text", {}),
        ("gemma4_text", SHARING),
        ("gemma4_text", EXPERTS_OF_MANY),
        ("gemma3", {"vision_config": VISION}),
        (
            "gemma4",
            {
                "text_config": SHARING,
                "vision_config": {"model_type": "gemma4_vision"},
                "audio_config": {"model_type": "gemma4_audio"},
            },
        ),
        ("gemma3n_text", {}),
    ],
    ids=["own_heads", "shared", "experts", "vision", "vision_and_audio", "own_inner_sizes"],
)
def test_a_small_copy_of_real_sizes_computes_the_same(
    family: str, settings: dict[str, Any], device: torch.device
) -> None:
    """Models whose layers differ, whose layers reuse keys and values of others, or that have a part for images."""
    check_small_copy(real_size(family, device, **settings), TorchBackend(), 4096)


def test_a_small_copy_that_amplifies_rounding_is_compared_less_strictly(device: torch.device) -> None:
    """By how far its float32 logits are from those in float64."""
    allowed = {}
    for family in ("gemma3n_text", "qwen3"):
        copy = SmallCopy(real_size(family, device), (), 128)
        allowed[family] = copy.tolerance(float("inf"))
        assert copy.tolerance(0.0) <= allowed[family] < 0.02
    assert allowed["gemma3n_text"] > allowed["qwen3"]


def real_size(family: str, device: torch.device, **settings: Any) -> PreTrainedModel:
    """Return the inputs of a small copy: the class, the configuration and the device, without the weights."""
    config = CONFIG_MAPPING[family](**settings)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model: PreTrainedModel = kind.__new__(kind)
    torch.nn.Module.__init__(model)
    model.config = config
    model.somewhere = torch.nn.Parameter(torch.zeros(1, device=device))
    return model


def test_per_layer_settings_stay_in_proportion(device: torch.device) -> None:
    config = tiny_copy(real_size("gemma4_text", device, **(SHARING | EXPERTS_OF_MANY)), []).config
    assert (config.num_hidden_layers, config.num_kv_shared_layers) == (10, 5)
    assert set(config.layer_types[:5]) == set(config.layer_types[5:]) == {"sliding_attention", "full_attention"}
    layers = [(layer.head_dim, layer.num_key_value_heads) for layer in config.per_layer_config]
    assert layers == [*[(16, 2)] * 4, (32, 1)] * 2
    assert config.num_experts == 8


def test_without_a_small_copy_the_first_reason_is_reported(device: torch.device) -> None:
    class Wide(LlamaForCausalLM):  # type: ignore[misc]  # transformers has no types here
        def __init__(self, config: LlamaConfig) -> None:
            if config.hidden_size < 4096:
                raise ValueError("narrower than my rotation")
            super().__init__(config)

    model = real_size("llama", device)
    model.__class__ = Wide
    with pytest.raises(UnsupportedModel, match=r"narrower than my rotation.*own widths.*smallest copy has \d+"):
        tiny_copy(model, [])


def test_thresholds_are_found_in_single_layers(make_model: MakeModel) -> None:
    config = make_model("gemma4_text", head_dim=16, global_head_dim=32, vocab_size_per_layer_input=96).config
    config.per_layer_config = {1: {"sliding_window": 40, "head_dim": 32}}
    assert {threshold.tokens for threshold in thresholds(config, 1024)} == {512, 40}
    assert [threshold.tokens for threshold in thresholds(config, 512)] == [40]


def test_thresholds_are_found_in_nested_settings(make_model: MakeModel) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    config = make_model("qwen3", head_dim=16, rope_parameters=rope).config
    assert [threshold.tokens for threshold in thresholds(config, 128)] == [64]
    assert thresholds(config, 64) == []
