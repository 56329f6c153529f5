"""The pass that packs the weights of experts, and computes each with all tokens that chose it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

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
from orcastream.engine.native import gate as native
from orcastream.engine.native.elementwise import ACTIVATIONS
from orcastream.engine.native.grouped import Arrange, GroupedLinear, Routes, combine

_CHOICES = 4
"""Experts per token in checks, at most."""

_FAR = 1000
"""Factor for inputs that reach the limits of some gates."""

Gate = Callable[[torch.Tensor], torch.Tensor]


class PackedExperts(nn.Module):
    """Replacement for a module of experts: down(gate(first(x))) of each token's experts, weighted."""

    def __init__(self, first: GroupedLinear, gate: Gate, second: GroupedLinear) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.gate = gate
        self.num_experts = len(first.linears)

    @property
    def packed_groups(self) -> tuple[GroupedLinear, GroupedLinear]:
        """The layers of all experts."""
        return self.first, self.second

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return `[..., hidden]` for x `[..., hidden]` and the experts of each row, `[rows, choices]`, with weights."""
        choices = experts.shape[-1]
        routes = Routes(experts.reshape(-1, choices), self.num_experts)
        inner = self.gate(self.first(x.reshape(-1, self.first.k), routes, routes.tokens))
        y = combine(self.second(inner, routes), routes, weights.reshape(-1, choices))
        return y.view(*x.shape[:-1], self.second.n)


@register("pack_experts")
class PackExperts(Pass):
    """Packs experts that transformers stores as one tensor for all, on a CPU in bfloat16 or float32.

    Its own implementations multiply expert by expert, or copy the weights of each token's experts. With `int8` weights
    are rounded to 8 bits.
    """

    def __init__(self, int8: bool = False) -> None:
        self._int8 = int8
        self._tolerance = ROUNDED_TOLERANCE if int8 else None

    def apply(self, model: PreTrainedModel) -> int:
        """Replace modules one after another, so that the experts of at most one layer are in memory twice."""
        rows = RowsToCheck()
        return sum(self._replace(model, name, module, rows) for name, module in list(model.named_modules()))

    def _replace(self, model: PreTrainedModel, name: str, module: nn.Module, rows: RowsToCheck) -> bool:
        if not _fits(module):
            return False
        width = getattr(module, "gate_up_proj" if module.has_gate else "up_proj").shape[
            -1 if module.is_transposed else 1
        ]
        gate, alternates = _gate(module, width)
        first = self._packed(module, "gate_up_proj" if module.has_gate else "up_proj", _apart if alternates else None)
        second = self._packed(module, "down_proj")
        if second.n != first.k:
            return False
        kind = (type(module), first.n, first.k, len(first.linears))
        packed = PackedExperts(first, gate, second)
        routed = partial(_routed, num_experts=packed.num_experts)
        inputs = list(random_inputs(first.k, model.dtype, rows.of(kind)))
        with _by_definition(module):
            if not same(name, partial(routed, module), partial(routed, packed), inputs, self._tolerance):
                return False
        rows.passed(kind)
        for parameter in list(dict(module.named_parameters(recurse=False))):
            delattr(module, parameter)
        replace(model, name, packed)
        return True

    def _packed(self, module: nn.Module, name: str, arrange: Arrange | None = None) -> GroupedLinear:
        weights, biases = getattr(module, name), getattr(module, f"{name}_bias", None)
        own = [weight.T if module.is_transposed else weight for weight in weights]
        return GroupedLinear.pack(own, biases, int8=self._int8, arrange=arrange)


def _fits(module: nn.Module) -> bool:
    """Whether it is a module of experts in transformers' common form, with weights that can be packed."""
    if getattr(module, "has_gate", None) is None or getattr(module, "is_transposed", None) is None:
        return False
    if getattr(module, "has_post_expert_norm", False) or not plain(module):
        return False
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    weights = [getattr(module, name, None) for name in names]
    return all(
        isinstance(weight, torch.Tensor)
        and weight.dim() == 3
        and weight.device.type == "cpu"
        and weight.dtype in (torch.bfloat16, torch.float32)
        for weight in weights
    )


def _gate(module: Any, width: int) -> tuple[Gate, bool]:
    """Return what is between both layers, as one operator if there is one that computes the same.

    Also return whether gates and ups, which the operator takes side by side, alternate in the first layer's outputs.
    """
    if not module.has_gate:
        only: Gate = module.act_fn
        return only, False
    own: Gate = module._apply_gate
    (x,) = random_inputs(width, torch.float32, [_CHOICES])
    kinds = [native.Gate(each) for each in ACTIVATIONS.values()]
    alpha, limit = (getattr(module, name, None) for name in ("alpha", "limit"))
    if isinstance(alpha, int | float) and isinstance(limit, int | float):
        kinds.append(native.Gate(native.CLAMPED_SWISH, alpha, limit))
    for alternates, kind in product((False, True), kinds) if width % 2 == 0 else ():
        fused = FusedGate(kind)
        inputs = [(each, _apart(each.T).T if alternates else each) for each in (x[0], _FAR * x[0])]
        if all(torch.allclose(own(each), fused(given), rtol=1e-5, atol=1e-6) for each, given in inputs):
            return fused, alternates
    return own, False


def _apart(rows: torch.Tensor) -> torch.Tensor:
    """Return the even rows, then the odd ones."""
    return torch.cat([rows[::2], rows[1::2]])


class FusedGate:
    """The gate of rows that have gate and up side by side."""

    def __init__(self, kind: native.Gate) -> None:
        self.kind = kind

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return native.apply_gate(x, self.kind)


@contextmanager
def _by_definition(module: Any) -> Iterator[None]:
    """Let the module compute expert by expert, which takes weights of any shape."""
    config = module.config
    before = config._experts_implementation
    config._experts_implementation = "eager"
    try:
        yield
    finally:
        config._experts_implementation = before


def _routed(module: nn.Module, x: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Compute `[1, rows, hidden]` with random experts for each row."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(x.shape[1], num_experts, generator=generator)
    weights, experts = scores.topk(min(num_experts, _CHOICES))
    y: torch.Tensor = module(x[0], experts, weights.to(x.dtype))
    return y.unsqueeze(0)
