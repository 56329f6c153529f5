"""Arguments that architectures hand to attention beside those that every backend honours."""

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
    # Nothing is dropped outside of training.
    "dropout": _off,
    # What a flat batch computes in any case.
    "is_causal": bool,
    # The layer has turned query and key by them, or the embedding has added them, before attention is called.
    "position_ids": _always,
    # Addressed to other parts of the model, and passed through by layers that hand on all they get: the cache is ours,
    # and there are no attention weights or router logits to return.
    "use_cache": _always,
    "output_attentions": _off,
    "output_router_logits": _off,
}
"""Names, and whether a value that is not None leaves the result as it is. These arrive from the architectures that are
served (`python -m tests.engine.model.survey`)."""


def refuse_unknown(module: nn.Module, attention_mask: torch.Tensor | None, arguments: Mapping[str, Any]) -> None:
    """UnsupportedModel where the layer would need something that a flat batch does not compute."""
    if attention_mask is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} hands attention a mask of its own, which a flat batch has none of"
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
