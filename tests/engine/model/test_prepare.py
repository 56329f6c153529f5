"""A compiled decoder is used only for models that it computes correctly, at any length and in any dtype."""

from pathlib import Path
from typing import Any

import pytest
import torch

from orcastream.engine import EngineConfig
from orcastream.engine.attention.native_backend import NativeBackend
from orcastream.engine.model.decoder_model import ATTRIBUTE, Factors
from orcastream.engine.model.load import load_model_config
from orcastream.engine.model.passes import recognize
from orcastream.engine.model.prepare import prepare_model
from tests.engine.model.passes.families import SAME_KIND, VARIANTS, random_model
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_MINISTRAL: dict[str, Any] = {"rope_parameters": _YARN, "max_position_embeddings": 1024, "pad_token_id": 0}


def prepared(tmp_path: Path, family: str, dtype: torch.dtype, max_model_len: int = 1000, **changes: Any) -> Any:
    random_model(family, dtype, **changes).save_pretrained(tmp_path)
    name: Any = str(dtype).removeprefix("torch.")
    config = EngineConfig(str(tmp_path), device="cpu", dtype=name)
    return prepare_model(config, load_model_config(config), torch.device("cpu"), NativeBackend(), max_model_len)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SAME_KIND)
def test_matching_models_keep_the_compiled_decoder(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert hasattr(prepared(tmp_path, family, dtype, **SAME_KIND[family]), ATTRIBUTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", VARIANTS)
def test_variants_keep_it_too(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert hasattr(prepared(tmp_path, family, dtype, **VARIANTS[family]), ATTRIBUTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_queries_that_grow_beyond_a_length_that_the_check_does_not_reach(dtype: torch.dtype, tmp_path: Path) -> None:
    assert not hasattr(prepared(tmp_path, "ministral3", dtype, **_MINISTRAL), ATTRIBUTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"logits_scaling": 1.05}, id="a factor that 16 bits hide"),
        pytest.param({"residual_multiplier": 0.95}, id="another one"),
    ],
)
def test_a_factor_that_is_overlooked_is_detected(
    changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognize, "_factors", lambda *_: Factors())
    assert not hasattr(prepared(tmp_path, "granite", dtype, **changes), ATTRIBUTE)


@pytest.mark.parametrize("layers", [[1, 1, 1, 0] * 2, [1] * 6 + [0]], ids=["every fourth", "a late one"])
def test_layers_that_rotate_nothing_are_found(layers: list[int], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"num_hidden_layers": len(layers), "no_rope_layers": layers, "pad_token_id": 0}
    model = prepared(tmp_path, "smollm3", torch.bfloat16, **changes)
    assert [layer.table for layer in getattr(model, ATTRIBUTE).layers] == [0 if each else None for each in layers]


def test_an_unreachable_length_does_not_matter(tmp_path: Path) -> None:
    model = prepared(tmp_path, "ministral3", torch.float32, max_model_len=200, **_MINISTRAL)
    assert hasattr(model, ATTRIBUTE)


def test_a_single_key_head_is_supported_too(tmp_path: Path) -> None:
    assert hasattr(prepared(tmp_path, "llama", torch.float32, num_key_value_heads=1), ATTRIBUTE)
