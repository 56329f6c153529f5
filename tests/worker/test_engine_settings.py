"""Every engine setting of the worker reaches the engine."""

from dataclasses import fields
from typing import Any

import pytest

from orcastream import engine
from orcastream.engine.schedule.policies import POLICIES
from orcastream.worker import main as worker_main
from orcastream.worker.settings import WorkerSettings

CHANGED: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "weight_dtype": "int8",
    "max_batch_size": 7,
    "max_num_batched_tokens": 77,
    "max_model_len": 99,
    "kv_cache_memory": 1 << 20,
    "kv_cache_dtype": "bfloat16",
    "cuda_graphs": "off",
    "attention_backend": "torch",
    "prefix_cache": False,
    "host_cache_memory": 1 << 19,
    "policy": "fair",
    "class_weight": 2.5,
    "token_budget": "adaptive",
    "tbt_target_ms": 12.5,
    "preemption": "swap",
    "admission": "reserve",
    "max_adapters": 3,
    "max_adapter_rank": 9,
}


class _Asked(Exception):
    pass


def test_settings_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    class Engine:
        @classmethod
        def load(cls, config: engine.EngineConfig) -> None:
            configs.append(config)
            raise _Asked

    monkeypatch.setattr(engine, "OrcaEngine", Engine)
    monkeypatch.setattr(worker_main, "_set_up_threads", lambda threads: None)
    settings = WorkerSettings(model="some/model", adapters="sql=/some/folder", **CHANGED)
    with pytest.raises(_Asked):
        worker_main._run(settings, "name", None, None, None)  # type: ignore[arg-type]
    (config,) = configs
    assert {name: getattr(config, name) for name in CHANGED} == CHANGED
    assert config.model == "some/model"
    shared = {field.name for field in fields(engine.EngineConfig)} & set(WorkerSettings.model_fields)
    assert shared == {*CHANGED, "model"}


def test_defaults_equal_those_of_the_engine() -> None:
    for field in fields(engine.EngineConfig):
        if field.name in CHANGED and field.name != "max_adapters":  # 0 in an engine: it has none
            assert WorkerSettings.model_fields[field.name].default == field.default, field.name


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_is_a_setting(policy: str) -> None:
    assert WorkerSettings(model="some/model", policy=policy).policy == policy
