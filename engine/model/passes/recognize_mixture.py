"""Recognizes a mixture of experts by the parts of an MLP."""

from typing import Any

import torch
from torch import nn

from orcastream.engine.model.decoder_model import GatedMLP, Mixture, SharedExpert
from orcastream.engine.model.passes.base import TOLERANCE, plain
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.pack_experts import FusedGate, PackedExperts
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer
from orcastream.engine.model.passes.recognize import LinearLayers
from orcastream.engine.model.passes.recognize_activation import activation_of
from orcastream.engine.model.passes.recognize_router import observe, recognize_router
from orcastream.engine.native.elementwise import ACTIVATIONS
from orcastream.engine.native.linear import PackedLinear

_GATED_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}

_ROWS = 4
"""With which the sum of all parts is compared."""


def recognize_mixture(mlp: Any, linears: LinearLayers[PackedLinear], dtype: torch.dtype) -> Mixture[PackedLinear]:
    """Return the mixture that `mlp` computes of rows in `dtype`. Raises OtherKind if it computes something else."""
    parts = dict(mlp.named_children())
    experts = parts.pop("experts")
    if not isinstance(experts, PackedExperts):
        raise OtherKind(f"{type(experts).__name__} are not packed")
    if not isinstance(experts.gate, FusedGate):
        raise OtherKind("experts with a gate of their own")
    shared = _take(parts, lambda part: set(dict(part.named_children())) == _GATED_MLP)
    weight = _take(parts, lambda part: type(part) in (PackedLinearLayer, nn.Linear))
    router = _take(parts, lambda _: True)
    expect(router is not None and not parts, "a mixture of other parts")
    expect(all(plain(each) for each in (mlp, experts, shared, weight) if each is not None), "a mixture with hooks")
    own, observed = recognize_router(mlp, router, dtype)
    _expect_sum(mlp, router, shared, weight, observed.rows[:_ROWS])
    return Mixture(
        own,
        experts.first.linears,
        experts.second.linears,
        experts.gate.kind,
        _shared(shared, weight, linears),
    )


def _take(parts: dict[str, Any], is_wanted: Any) -> Any:
    """Remove and return the first part that is wanted; None if there is none."""
    name = next((name for name, part in parts.items() if is_wanted(part)), None)
    return None if name is None else parts.pop(name)


def _shared(shared: Any, weight: Any, linears: LinearLayers[PackedLinear]) -> SharedExpert[PackedLinear] | None:
    if shared is None:
        expect(weight is None, "a mixture with another linear layer")
        return None
    expect(weight is None or weight.out_features == 1, "a shared expert with several weights")
    mlp = GatedMLP(linears.merged(shared.gate_proj, shared.up_proj), linears.single(shared.down_proj))
    expect(mlp.gate_up.n == 2 * mlp.down.k, "a shared expert of another shape")
    return SharedExpert(mlp, _activation(shared), None if weight is None else _weight(weight, linears))


def _weight(layer: Any, linears: LinearLayers[PackedLinear]) -> PackedLinear:
    """Return the product of a layer that stays as it is if its only output, in 8 bits, is too far off."""
    if not isinstance(layer, nn.Linear):
        return linears.single(layer)
    return PackedLinear.pack(layer.weight, layer.bias)


def _activation(shared: Any) -> int:
    found = activation_of(shared)
    if found is None:
        raise OtherKind(f"a shared expert with {type(shared.act_fn).__name__}")
    return ACTIVATIONS[found]


def _expect_sum(mlp: Any, router: Any, shared: Any, weight: Any, rows: torch.Tensor) -> None:
    """Expect that `mlp` returns the sum of what its experts yield, and nothing else."""
    _, _, chosen, weights = observe(mlp, router, rows)
    with torch.inference_mode():
        found = mlp(rows.unsqueeze(0))
        expected = mlp.experts(rows, chosen, weights)
        if shared is not None:
            expected = expected + shared(rows) * (1 if weight is None else weight(rows).sigmoid())
    found = (found[0] if isinstance(found, tuple) else found).reshape(rows.shape)
    distance = float((found - expected).float().norm() / expected.float().norm().clamp(min=1e-30))
    expect(distance <= TOLERANCE[rows.dtype], f"{type(mlp).__name__} computes something else")
