"""A mixture of experts in one operator yields what its modules do."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine.model.compiled_mixture import CompiledMixture
from orcastream.engine.model.decoder_model import Mixture
from orcastream.engine.model.passes import pack_linears
from orcastream.engine.model.passes.compile_decoder import PackedLayers
from orcastream.engine.model.passes.merge_projections import MergeProjections
from orcastream.engine.model.passes.other_kind import OtherKind
from orcastream.engine.model.passes.recognize_mixture import recognize_mixture
from orcastream.engine.native.linear import PackedLinear
from orcastream.engine.native.mixture import SIGMOID, SOFTMAX
from tests.engine.model.passes.families import EXPERTS, GROUPED, random_model
from tests.engine.native.test_mixture import errors_of, rows
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators

FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 16, "num_experts_per_tok": 4},
    "qwen2_moe": EXPERTS | {"num_experts": 16, "shared_expert_intermediate_size": 64, "head_dim": None},
    "glm4_moe": GROUPED | {"pad_token_id": 0},
    "dots1": GROUPED | {"norm_topk_prob": False, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "deepseek_v3": GROUPED | {"head_dim": None, "num_key_value_heads": 4, "first_k_dense_replace": 1},
    "ernie4_5_moe": EXPERTS | {"moe_num_experts": 16, "moe_k": 4, "moe_num_shared_experts": 2, "pad_token_id": 0},
    "minimax_m2": EXPERTS | {"num_local_experts": 16, "bos_token_id": 1, "eos_token_id": 2},
    "granitemoe": EXPERTS | {"num_local_experts": 16},
}


def mixtures(model: PreTrainedModel) -> list[Any]:
    """Return the MLPs that have experts."""
    return [module for module in model.modules() if hasattr(module, "experts")]


def packed(model: PreTrainedModel, *, int8: bool = False) -> PreTrainedModel:
    pack_linears(model, int8)
    with torch.inference_mode():
        MergeProjections().apply(model)
    return model


def recognized(mlp: Any, dtype: torch.dtype) -> Mixture[PackedLinear]:
    with torch.inference_mode():
        return recognize_mixture(mlp, PackedLayers(dtype), dtype)


def by_modules(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = mlp(x.unsqueeze(0))
    found: torch.Tensor = (y[0] if isinstance(y, tuple) else y).reshape(x.shape)
    return found


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixture_yields_what_its_modules_do(family: str, dtype: torch.dtype, int8: bool) -> None:
    """Of bfloat16 scores that differ by their rounding alone, either expert may be chosen."""
    mlp = mixtures(packed(random_model(family, dtype, **FAMILIES[family]), int8=int8))[0]
    found = recognized(mlp, dtype)
    compiled = CompiledMixture(found, dtype)
    tolerance = 0.02 if int8 or dtype is torch.bfloat16 else 1e-5
    for count in (1, 3, 64):
        x = rows(count, found.router.scores.k, dtype)
        errors = errors_of(compiled(x), by_modules(mlp, x))
        assert (errors > tolerance).sum() <= (count // 16 if dtype is torch.bfloat16 else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_routers_are_recognized_by_what_they_compute(dtype: torch.dtype) -> None:
    wide = dtype is torch.bfloat16
    expected = {
        "qwen2_moe": (False, SOFTMAX, False, 1, 1, False, 1.0),
        "gpt_oss": (False, SOFTMAX, False, 1, 1, True, 1.0),
        "glm4_moe": (wide, SIGMOID, True, 4, 2, True, 1.7),
        "dots1": (wide, SIGMOID, True, 4, 2, False, 1.7),
        "ernie4_5_moe": (wide, SOFTMAX, True, 1, 1, True, 1.0),
        "minimax_m2": (False, SIGMOID, True, 1, 1, True, 1.0),
    }
    for family, kind in expected.items():
        mlp = mixtures(packed(random_model(family, dtype, **FAMILIES[family])))[0]
        router = recognized(mlp, dtype).router
        parts = router.groups, router.chosen_groups, router.normalizes, router.factor
        assert (router.in_float32, router.scoring, router.correction is not None, *parts) == kind, family


def test_a_router_in_float32_keeps_weights_that_rows_in_bfloat16_would_round() -> None:
    model = random_model("glm4_moe", torch.bfloat16, **FAMILIES["glm4_moe"])
    with torch.no_grad():
        for mlp in mixtures(model):
            mlp.gate.weight.data = torch.randn(mlp.gate.weight.shape)
    mlp = mixtures(packed(model))[0]
    found = recognized(mlp, torch.bfloat16)
    assert found.router.scores.dtype is torch.float32
    x = rows(64, 64, torch.bfloat16)
    assert (errors_of(CompiledMixture(found, x.dtype)(x), by_modules(mlp, x)) < 0.02).all()


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_mixture_that_does_something_else_is_refused(factor: float) -> None:
    model = packed(random_model("glm4_moe", torch.float32, **FAMILIES["glm4_moe"]))
    mlp = mixtures(model)[0]

    class Other(type(mlp)):  # type: ignore[misc]  # known only at run time
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = super().forward(x) * factor
            return y

    mlp.__class__ = Other
    with pytest.raises(OtherKind, match="Other computes something else"):
        recognized(mlp, torch.float32)
