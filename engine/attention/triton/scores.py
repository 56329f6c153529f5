"""Converts the arguments of a call for the kernels."""

import math

import torch

from orcastream.engine.attention.base import AttentionCall

_LOG2_E = math.log2(math.e)


def score_factors(call: AttentionCall) -> tuple[float, float]:
    """`scale` and `cap`, such that scores times log2(e) are `scale * product`, or with a soft cap
    `cap * (1 - 2 / (exp2(scale * product) + 1))`, which is cap * tanh."""
    if call.softcap is None:
        return call.scale * _LOG2_E, 0.0
    return 2 * call.scale / call.softcap * _LOG2_E, call.softcap * _LOG2_E


def sinks_or(call: AttentionCall, stand_in: torch.Tensor) -> torch.Tensor:
    """Return the sinks, or a placeholder tensor for a kernel without them."""
    return stand_in if call.sinks is None else call.sinks
