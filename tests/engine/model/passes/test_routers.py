"""Which mixtures of experts a compiled decoder computes, and which it leaves to the modules."""

import pytest
import torch

from orcastream.engine.attention import NativeBackend
from orcastream.engine.model.decoder_model import ATTRIBUTE, Mixture
from orcastream.engine.model.passes import apply_passes
from orcastream.engine.model.self_check import Reference, check_loaded
from tests.engine.model.passes.families import SAME_KIND, random_model
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators


def test_routers_that_choose_otherwise_leave_the_model_to_its_modules(caplog: pytest.LogCaptureFixture) -> None:
    """These weight by squares."""
    model = random_model("mixtral", torch.float32, **SAME_KIND["mixtral"])

    class Router(type(model.model.layers[0].mlp.gate)):  # type: ignore[misc]  # known only at run time
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scores, _, chosen = super().forward(x)
            return scores, scores.gather(1, chosen).square(), chosen

    for layer in model.model.layers:
        layer.mlp.gate.__class__ = Router
    reference = Reference.of(model, 128)
    caplog.set_level("INFO")
    replaced = apply_passes(model)
    assert (replaced["pack_experts"], replaced["compile_decoder"]) == (3, 0)
    assert "module by module: Router weighs otherwise" in caplog.text
    check_loaded(model, NativeBackend(), reference)


def test_routers_that_limit_scores_leave_the_model_to_its_modules(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the rounding to bfloat16 hides that for small scores."""
    model = random_model("mixtral", torch.bfloat16, **SAME_KIND["mixtral"])

    class Router(type(model.model.layers[0].mlp.gate)):  # type: ignore[misc]  # known only at run time
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scores, _, chosen = super().forward(x)
            weights = (50 * torch.tanh(scores.float().gather(1, chosen) / 50)).softmax(-1)
            return scores, weights.to(x.dtype), chosen

    for layer in model.model.layers:
        layer.mlp.gate.__class__ = Router
    caplog.set_level("INFO")
    assert apply_passes(model)["compile_decoder"] == 0
    assert "module by module: Router weighs otherwise" in caplog.text


def test_routers_in_another_format_are_computed_in_it() -> None:
    """Some families keep them in float32, beside rows in bfloat16."""
    model = random_model("mixtral", torch.bfloat16, **SAME_KIND["mixtral"])

    class Router(type(model.model.layers[0].mlp.gate)):  # type: ignore[misc]  # known only at run time
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found: tuple[torch.Tensor, ...] = super().forward(x.float())
            return found

    for layer in model.model.layers:
        layer.mlp.gate.float().__class__ = Router
    reference = Reference.of(model, 128)
    assert apply_passes(model)["compile_decoder"] == 1
    assert all(layer.mlp.router.in_float32 for layer in getattr(model, ATTRIBUTE).layers)
    check_loaded(model, NativeBackend(), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize(("family", "normalizes"), [("mixtral", True), ("qwen3_moe", False)])
def test_weights_add_up_as_the_router_says(family: str, normalizes: bool, factor: float, dtype: torch.dtype) -> None:
    """Even if its scores hardly differ, or one outweighs all others, on rows of usual size."""
    model = random_model(family, dtype, **SAME_KIND[family])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight.mul_(factor)
    assert apply_passes(model)["compile_decoder"] == 1
    mixtures = [layer.mlp for layer in getattr(model, ATTRIBUTE).layers if isinstance(layer.mlp, Mixture)]
    assert [each.router.normalizes for each in mixtures] == [normalizes] * len(mixtures)
