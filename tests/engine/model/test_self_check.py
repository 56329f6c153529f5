"""What the engine refuses to load, with which reason, and that it accepts the rest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.attention import TorchBackend
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.model.self_check import Reference, check_loaded, check_model, check_small_copy
from orcastream.engine.model.tiny_copy import thresholds, tiny_copy

MakeModel = Callable[..., PreTrainedModel]

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bloom", {}, "alibi"),
    ("falcon", {"alibi": True}, "alibi"),
    ("mamba", {}, "0 of 2 layers call the attention interface"),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, "1 of 2 layers"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic NTK"),
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
        # And not the original length, which is kept.
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


def test_loaded_weights_alone_can_give_it_away(make_model: MakeModel) -> None:
    """A module that mixes neighbouring tokens of the stream, which no configuration tells."""
    model = make_model()
    check_loaded(model, TorchBackend(), Reference.of(model, 128))
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: output + output.roll(1, dims=1))
    with pytest.raises(UnsupportedModel, match="on the loaded weights"):
        check_loaded(model, TorchBackend(), Reference.of(model, 128))


def test_a_backend_that_forgets_the_window_is_found_by_the_small_copy(make_model: MakeModel) -> None:
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


def test_thresholds_are_found_in_nested_settings(make_model: MakeModel) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    config = make_model("qwen3", head_dim=16, rope_parameters=rope).config
    assert [threshold.tokens for threshold in thresholds(config, 128)] == [64]
    assert thresholds(config, 64) == []
