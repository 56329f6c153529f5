"""Recognizes norms by what they compute."""

from itertools import product
from typing import Any

import torch

from orcastream.engine.model.decoder_model import Norm
from orcastream.engine.model.passes.base import plain
from orcastream.engine.model.passes.other_kind import OtherKind, expect

_ROWS = 4

_OFFSET = 0.5
"""Mean of the rows with which a norm is compared: only then an RMSNorm differs from a LayerNorm."""

_SMALL = 1e-3
"""Factor for further rows, of which the epsilons that are used change the result."""

_EPSILONS = (1e-5, 1e-6, 1e-12)
"""Of norms that do not say theirs."""

_TOLERANCE = {torch.float32: 1e-5}
_ROUNDED_TOLERANCE = 1e-2


def recognize_norm(norm: Any, width: int) -> Norm:
    """Return a module as a norm of that width. Raises OtherKind for one that computes something else.

    Some architectures store weights minus one, or none.
    """
    name = type(norm).__name__
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    epsilons = (epsilon,) if isinstance(epsilon, float) else _EPSILONS
    own, bias = (getattr(norm, each, None) for each in ("weight", "bias"))
    parameters = set(dict(norm.named_parameters()))
    expect(plain(norm) and parameters <= {"weight", "bias"}, f"{name} has other weights")
    device = None if own is None else own.device
    weight = torch.ones(width, device=device) if own is None else own.detach().float()
    expect(weight.shape == (width,), f"{name} of {tuple(weight.shape)} instead of {width}")
    x = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)) + _OFFSET
    x = torch.cat((x, _SMALL * x)).to(device=device, dtype=torch.float32 if own is None else own.dtype)
    with torch.inference_mode():
        expected = norm(x).float()
    shift = None if bias is None else bias.detach().float().contiguous()
    tolerance = _TOLERANCE.get(x.dtype, _ROUNDED_TOLERANCE)
    for factors, centers, each in product((weight, 1 + weight), (False, True), epsilons):
        found = Norm(factors.contiguous(), shift, each, centers)
        if _is_near(found(x), expected, tolerance):
            return found
    raise OtherKind(f"{name} is neither an RMSNorm nor a LayerNorm")


def _is_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether each row is within a relative distance."""
    distances = (found - expected).norm(dim=-1)
    return bool((distances <= tolerance * expected.norm(dim=-1)).all())
