"""The pass that fuses a gated MLP into one operator, or at least the steps between its products."""

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import (
    ROUNDED_TOLERANCE,
    Pass,
    RowsToCheck,
    plain,
    random_inputs,
    register,
    replace,
    same,
)
from orcastream.engine.model.passes.merge_projections import MergedLinear, MergedLinearLayer
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer
from orcastream.engine.model.passes.recognize_activation import activation_of
from orcastream.engine.native.elementwise import ACTIVATIONS, ActivationName, gated
from orcastream.engine.native.mlp import mlp

_FAR = 1000
"""Factor for inputs that reach the limits of some activations."""

_TELLING = 0.5
"""Root mean square of gates whose activations differ enough: for small ones, GELU and its approximations are equal."""


class FusedGatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), gate and up computed by one module."""

    def __init__(
        self, gate_up: MergedLinear | PackedLinearLayer, down: PackedLinearLayer, activation: ActivationName
    ) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down_proj = down
        self.activation: ActivationName = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the MLP for x `[..., hidden]`; returns the same shape."""
        if plain(self.gate_up) and plain(self.down_proj):  # no hook reads or changes their outputs
            whole = mlp(self.gate_up.packed, self.down_proj.packed, x, self.activation)
            if whole is not None:
                return whole
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: torch.Tensor = self.down_proj(gated(gate, up, self.activation))
        return y


@register("fuse_gated_mlp")
class FuseGatedMLP(Pass):
    """Fuses every module of merged gate and up projections and a down projection: Llama, Gemma, Phi 3 and others."""

    def apply(self, model: PreTrainedModel) -> int:
        """Replace the modules that compute the same as a fused one."""
        rows = RowsToCheck()
        return sum(_fuse(model, name, module, rows) for name, module in list(model.named_modules()))


def _fuse(model: PreTrainedModel, name: str, module: nn.Module, rows: RowsToCheck) -> bool:
    gate_up = _gate_up(module)
    down = getattr(module, "down_proj", None)
    if gate_up is None or not isinstance(down, PackedLinearLayer) or not plain(module):
        return False
    if gate_up.packed.n != 2 * down.in_features:
        return False
    kind = (type(module), type(gate_up), gate_up.packed.n, gate_up.packed.k, gate_up.packed.dtype, down.packed.dtype)
    inputs = list(random_inputs(gate_up.packed.k, model.dtype, rows.of(kind)))
    gates = gate_up(inputs[-1])[..., : down.in_features].float()
    telling = inputs[-1] * (_TELLING / gates.square().mean().sqrt().clamp(min=1e-6))
    inputs += [telling, _FAR * inputs[-1]]
    expected = module(telling).float()
    errors = {}
    known = activation_of(module)
    for activation in ACTIVATIONS if known is None else (known,):
        found = FusedGatedMLP(gate_up, down, activation)(telling).float()
        errors[activation] = float((found - expected).norm())
    fused = FusedGatedMLP(gate_up, down, min(errors, key=lambda each: errors[each]))
    # The fused steps skip a rounding to the model's dtype, after which the 8-bit values may differ.
    tolerance = ROUNDED_TOLERANCE if down.packed.dtype == torch.int8 else None
    if not same(name, module, fused, inputs, tolerance):
        return False
    rows.passed(kind)
    replace(model, name, fused)
    return True


def _gate_up(module: nn.Module) -> MergedLinear | PackedLinearLayer | None:
    """Return the layer that computes its gate and up projections side by side, or None."""
    gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
    if isinstance(gate, MergedLinearLayer) and isinstance(up, MergedLinearLayer) and gate.merged is up.merged:
        return gate.merged if (gate.index, up.index, len(gate.merged.widths)) == (0, 1, 2) else None
    both = getattr(module, "gate_up_proj", None)
    return both if isinstance(both, PackedLinearLayer) else None
