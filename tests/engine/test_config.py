"""Settings are checked when they are made."""

from dataclasses import FrozenInstanceError
from math import inf
from typing import Any

import pytest

from orcastream.engine import EngineConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "model: got an empty name"),
        ({"block_size": 0}, "block_size: got 0, allowed: an integer of at least 1"),
        ({"max_batch_size": True}, "max_batch_size: got True"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens: got -5"),
        ({"kv_cache_memory": 0}, "kv_cache_memory: got 0"),
        ({"max_model_len": 1.5}, "max_model_len: got 1.5"),
        ({"dtype": "int8"}, "dtype: got 'int8', allowed: auto, float32, bfloat16, float16"),
        ({"device": "tpu"}, "device: got 'tpu', allowed: auto, cpu, cuda"),
        (
            {"max_num_batched_tokens": 16, "max_batch_size": 32},
            "max_batch_size: got 32, allowed: at most max_num_batched_tokens, which is 16",
        ),
        ({"max_adapters": -1}, "max_adapters: got -1, allowed: an integer of at least 0"),
        ({"max_adapters": 1.5}, "max_adapters: got 1.5, allowed: an integer of at least 0"),
        ({"host_cache_memory": 1e9}, "host_cache_memory: got 1000000000.0, allowed: an integer of at least 0"),
        ({"class_weight": inf}, "class_weight: got inf, allowed: 1 to 1000"),
        ({"class_weight": 1e200}, r"class_weight: got 1e\+200, allowed: 1 to 1000"),
        ({"tbt_target_ms": inf, "token_budget": "adaptive"}, "tbt_target_ms: got inf, allowed: more than 0"),
        ({"max_adapter_rank": 0}, "max_adapter_rank: got 0, allowed: an integer of at least 1"),
        ({"preemption": "swap"}, "preemption: got 'swap', allowed with host_cache_memory 0: auto, recompute"),
        ({"tbt_target_ms": 5.0}, "tbt_target_ms: got 5.0, allowed with token_budget fixed: None"),
        ({"admission": "lottery"}, "admission: got 'lottery', allowed: paged, reserve"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        EngineConfig(**{"model": "x", **changes})


@pytest.mark.parametrize(
    ("given", "device", "budget", "places"),
    [
        ({}, "cpu", 256, 32),
        ({}, "cuda", 2048, 256),
        ({"max_batch_size": 300}, "cpu", 300, 300),
        ({"max_batch_size": 300}, "cuda", 2048, 300),
        ({"max_num_batched_tokens": 77}, "cuda", 77, 77),
        ({"max_num_batched_tokens": 16}, "cpu", 16, 16),
        ({"max_num_batched_tokens": 77, "max_batch_size": 5}, "cuda", 77, 5),
    ],
)
def test_token_budget_and_batch_size_default_by_device(
    given: dict[str, int], device: str, budget: int, places: int
) -> None:
    config = EngineConfig("x", **given)  # type: ignore[arg-type]
    resolved = config.on(device)
    assert resolved.max_num_batched_tokens == resolved.token_budget_tokens == budget
    assert resolved.max_batch_size == resolved.num_places == places
    assert device != "cpu" or (config.token_budget_tokens, config.num_places) == (budget, places)


def test_the_configuration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig("x").block_size = 8  # type: ignore[misc]
