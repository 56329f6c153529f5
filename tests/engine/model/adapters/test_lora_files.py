"""Adapters that the model cannot compute are refused with an error that names the fault."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from orcastream.engine import Adapters, OrcaEngine, UnsupportedAdapter
from orcastream.engine.model.adapters.lora_config import LoraConfig
from orcastream.engine.model.adapters.lora_weights import LoraWeights
from tests.engine.running import MakeEngine, MakeModel
from tests.lora import save_adapter

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def engine(make_model: MakeModel, make_engine: MakeEngine) -> OrcaEngine:
    return make_engine(make_model(), max_adapters=1, max_adapter_rank=4)


@pytest.fixture
def adapters(engine: OrcaEngine) -> Adapters:
    assert engine.adapters is not None
    return engine.adapters


@pytest.fixture
def saved(engine: OrcaEngine, tmp_path: Path) -> Path:
    return save_adapter(engine.model, tmp_path / "saved", seed=0)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    change(weights)
    path.unlink()
    save_file(weights, path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type: got 'IA3', allowed: LORA"),
        ({"task_type": "SEQ_CLS"}, "task_type: got 'SEQ_CLS', allowed: CAUSAL_LM"),
        ({"use_dora": True}, "use_dora: got True, allowed: nothing (it is not computed here)"),
        ({"lora_alpha": 10**400}, "lora_alpha: got 1000"),
        ({"lora_bias": True}, "lora_bias: got True, allowed: nothing"),
        ({"bias": "all"}, "bias: got 'all', allowed: none"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: got ['lm_head'], allowed: nothing"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: got 'pissa', allowed: True, False, gaussian"),
        ({"something_new": {"of": 1}}, "something_new: got {'of': 1}, allowed: nothing"),
        ({"r": 0}, "r: got 0, allowed: an integer of at least 1"),
        ({"r": 8}, "r: got 8 for model.layers.0"),
        ({"r": 3}, "], allowed: [3, "),
        ({"lora_alpha": "much"}, "lora_alpha: got 'much', allowed: a number"),
        ({"use_rslora": 1}, "use_rslora: got 1, allowed: true, false"),
        ({"rank_pattern": {"(": 1}}, "rank_pattern: got '(', allowed: a regular expression"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern.q_proj: got None, allowed: a number"),
        ({"target_modules": ["q_proj", "lm_head"]}, None),
    ],
)
def test_configurations(adapters: Adapters, saved: Path, fields: dict[str, Any], message: str | None) -> None:
    change_config(saved, **fields)
    if message is None:  # a name that matches no module does not affect the existing weights
        adapters.check(saved)
        return
    for looked in (adapters.check, lambda folder: adapters.read("x", folder)):
        with pytest.raises(UnsupportedAdapter) as refused:
            looked(saved)
        assert message in refused.value.reason
        assert refused.value.reason.startswith(str(saved))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{Q_PROJ}.lora_A.weight"), f"{Q_PROJ}.lora_A.weight: it is missing"),
        (
            lambda w: [w.pop(f"{Q_PROJ}.lora_{each}.weight") for each in "AB"],
            "it lacks the weights of model.layers.0.self_attn.q_proj, which target_modules names",
        ),
        (lambda w: w.update({f"{Q_PROJ}.lora_B.weight": torch.ones(33, 4)}), "got the shape [33, 4], allowed: [32, 4]"),
        (
            lambda w: w.update({f"{Q_PROJ}.lora_A.weight": torch.ones(4, 32, dtype=torch.int8)}),
            f"{Q_PROJ}.lora_A.weight: got I8, allowed: F64, F32, F16, BF16",
        ),
        (lambda w: w.update({f"{Q_PROJ}.lora_magnitude_vector": torch.ones(32)}), "lora_magnitude_vector: allowed:"),
        (
            lambda w: w.update({"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": torch.ones(4, 32)}),
            "model.layers.7.mlp.up_proj: not a linear layer of this model that every token passes through once; "
            "allowed: layers named down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj",
        ),
        (
            lambda w: w.update({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 32)}),
            "lm_head: not a linear layer of this model that every token passes through once",
        ),
        (lambda w: w.clear() or w.update({"other": torch.ones(1)}), "other: allowed: base_model.model.LAYER"),
    ],
)
def test_weights(adapters: Adapters, saved: Path, change: Callable[[Weights], object], message: str) -> None:
    change_weights(saved, change)
    with pytest.raises(UnsupportedAdapter) as refused:
        adapters.check(saved)
    assert message in refused.value.reason


def test_numbers_that_are_not_finite(adapters: Adapters, saved: Path) -> None:
    change_weights(saved, lambda weights: weights[f"{Q_PROJ}.lora_B.weight"].fill_(torch.nan))
    adapters.check(saved)
    with pytest.raises(
        UnsupportedAdapter, match=r"the weights of model\.layers\.0\.self_attn\.q_proj are not all finite"
    ):
        adapters.read("x", saved)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_truncated_or_missing_files(adapters: Adapters, saved: Path, name: str) -> None:
    path = saved / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UnsupportedAdapter, match=name):
        adapters.check(saved)
    path.unlink()
    with pytest.raises(UnsupportedAdapter, match=name):
        adapters.check(saved)


def test_layers_and_ranks_by_pattern() -> None:
    config = LoraConfig(
        rank=8,
        alpha=16,
        use_rslora=False,
        rank_pattern={"layers.1.self_attn.q_proj": 4, "k_proj": 2},
        alpha_pattern={r"layers\.\d+\.mlp\..*": 4},
        targets=("q_proj",),
    )
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 4
    assert config.rank_of("model.layers.11.self_attn.q_proj") == 8
    assert config.rank_of("model.layers.0.self_attn.k_proj") == 2
    assert config.rank_of("model.layers.0.self_attn.qk_proj") == 8
    assert config.scale_of("model.layers.0.self_attn.k_proj") == 8
    assert config.scale_of("model.layers.3.mlp.up_proj") == 0.5
    assert config.wants("model.layers.0.self_attn.q_proj")
    assert not config.wants("model.layers.0.self_attn.seq_proj")


def test_an_unused_adapter_is_freed(adapters: Adapters, saved: Path) -> None:
    adapter = adapters.read("a", saved)
    other = adapters.read("a", saved)
    assert adapter in adapters
    assert other in adapters
    assert adapter.digest == other.digest
    number = adapter.number
    del adapter
    assert number not in adapters._known
    assert other in adapters


def test_files_replaced_after_they_were_read_are_another_adapter(
    engine: OrcaEngine, adapters: Adapters, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise requests for the new one would reuse keys and values of the old one."""
    new = save_adapter(engine.model, tmp_path / "new", seed=1)
    read = LoraWeights.read

    def read_and_replace(weights: LoraWeights) -> Any:
        factors = {layer: tuple(map(torch.clone, each)) for layer, each in read(weights).items()}
        copytree(new, saved, dirs_exist_ok=True)
        return factors

    monkeypatch.setattr(LoraWeights, "read", read_and_replace)
    old = adapters.read("a", saved)
    assert adapters.read("a", saved).digest != old.digest


def test_a_scale_belongs_to_the_digest(adapters: Adapters, saved: Path) -> None:
    before = adapters.read("a", saved)
    change_config(saved, lora_alpha=9)
    assert adapters.read("a", saved).digest != before.digest


def test_no_adapters_without_the_setting(make_engine: MakeEngine) -> None:
    assert make_engine().adapters is None
