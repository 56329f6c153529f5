"""Settings are checked when they are made."""

from dataclasses import FrozenInstanceError
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
            {"max_num_batched_tokens": 16},
            "max_batch_size: got 32, allowed: at most max_num_batched_tokens, which is 16",
        ),
        ({"max_adapters": -1}, "max_adapters: got -1, allowed: 0 or more"),
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
    ("given", "device", "budget"),
    [
        ({}, "cpu", 256),
        ({}, "cuda", 2048),
        ({"max_batch_size": 300}, "cpu", 300),
        ({"max_batch_size": 300}, "cuda", 2048),
        ({"max_num_batched_tokens": 77}, "cuda", 77),
    ],
)
def test_the_token_budget_suits_the_device_unless_there_is_one(given: dict[str, int], device: str, budget: int) -> None:
    resolved = EngineConfig("x", **given).on(device)  # type: ignore[arg-type]
    assert resolved.max_num_batched_tokens == resolved.token_budget_tokens == budget


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig("x").block_size = 8  # type: ignore[misc]
