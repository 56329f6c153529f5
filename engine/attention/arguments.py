"""Checks the arguments that architectures pass to attention in addition to those that every backend honors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from orcastream.engine.errors import UnsupportedModel


def _always(value: Any) -> bool:
    return True


def _off(value: Any) -> bool:
    return not value


HARMLESS: dict[str, Callable[[Any], bool]] = {
    # Dropout applies only in training.
    "dropout": _off,
    # A flat batch computes this in any case.
    "is_causal": bool,
    # Before attention is called, the layer has rotated query and key by them, or the embedding has added them.
    "position_ids": _always,
    # Meant for other parts of the model, but passed on by layers that forward all arguments: the cache is ours, the
    # head has its rows, and there are no attention weights or router logits to return.
    "use_cache": _always,
    "logits_to_keep": _always,
    "output_attentions": _off,
    "output_router_logits": _off,
}
"""Argument names, and a check whether a value other than None leaves the result unchanged. The supported architectures
pass these (`python -m tests.engine.model.survey`)."""


def refuse_unknown(module: nn.Module, attention_mask: torch.Tensor | None, arguments: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel if the layer needs something that a flat batch does not compute."""
    if attention_mask is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} hands attention a mask of its own, but a flat batch has no mask"
        )
    for name, value in arguments.items():
        if value is None:
            continue
        harmless = HARMLESS.get(name)
        if harmless is None:
            raise UnsupportedModel(
                f"{type(module).__name__} hands attention the argument {name}, which this engine does not know"
            )
        if not harmless(value):
            raise UnsupportedModel(
                f"{type(module).__name__} hands attention {name}={value!r}, which this engine does not compute"
            )
