"""Converts the arguments of a call for the kernels."""

import math

import torch

from orcastream.engine.attention.base import AttentionCall

_LOG2_E = math.log2(math.e)
_SMALLEST = 1e-18
"""Stands in for a scale of 0, because minus infinity times 0 is no number."""


def score_factors(call: AttentionCall) -> tuple[float, float]:
    """`scale` and `cap`, such that scores times log2(e) are `scale * product`, or with a soft cap
    `cap * (1 - 2 / (exp2(scale * product) + 1))`, which is cap * tanh.

    The scale is positive, so that the largest product is the highest score; `signed` negates queries if it is not.
    """
    scale = max(abs(call.scale), _SMALLEST)
    if call.softcap is None:
        return scale * _LOG2_E, 0.0
    return 2 * scale / call.softcap * _LOG2_E, call.softcap * _LOG2_E


def signed(query: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """Return `query` with the sign of the call's scale."""
    return -query if call.scale < 0 else query


def sinks_or(call: AttentionCall, stand_in: torch.Tensor) -> torch.Tensor:
    """Return the sinks, or a placeholder tensor for a kernel without them."""
    return stand_in if call.sinks is None else call.sinks
