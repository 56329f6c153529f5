"""Recognizes activations by what they compute."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orcastream.engine.model.passes.parts import ACTIVATION_NAMES
from orcastream.engine.native.elementwise import ActivationName

_FUNCTIONS: dict[ActivationName, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
    "squared_relu": lambda x: nn.functional.relu(x).square(),
}

_INPUTS = torch.cat((torch.linspace(-8, 8, 101), torch.tensor([-1e4, -300.0, 300.0, 1e4])))
"""Also beyond limits that some activations have."""


def activation_of(mlp: nn.Module) -> ActivationName | None:
    """Return the activation of an MLP; None if it has none that is known."""
    return next((activation_like(getattr(mlp, name)) for name in ACTIVATION_NAMES if hasattr(mlp, name)), None)


def activation_like(function: Any) -> ActivationName | None:
    """Return the activation that `function` computes; None if it is no known one."""
    expected = function(_INPUTS)
    same = (name for name, each in _FUNCTIONS.items() if torch.allclose(each(_INPUTS), expected, rtol=1e-5, atol=1e-6))
    return next(same, None)
