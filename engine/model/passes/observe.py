"""Observes what the layers of a model hand to attention."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from orcastream.engine.model.quiet import quiet

_IMPLEMENTATION = "orcastream_observer"

POSITIONS = (0, 1, 5, 40)
"""Of the observed tokens: with different angles."""

_TOKENS = (1, 2, 3, 0)


@dataclass(frozen=True, slots=True)
class Attended:
    """One layer's call of attention, and the linear layers that were computed before it.

    Queries and keys are `[tokens, heads, size]`, as attention gets them; the outputs of linear layers
    `[tokens, width]`, by the last part of their names.
    """

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value_size: int
    scale: float
    softcap: float
    sinks: torch.Tensor | None
    outputs: Mapping[str, torch.Tensor]


_OBSERVED: ContextVar[tuple[list[Attended], dict[str, torch.Tensor]] | None] = ContextVar("observed", default=None)
"""The calls so far, and the outputs of linear layers since the last one."""


@torch.inference_mode()
def observe(model: PreTrainedModel, layers: Sequence[str]) -> list[Attended]:
    """Return the calls of attention in a forward pass over a few tokens, in their order; attention yields zeros.

    `layers` are the last parts of the names of linear layers whose outputs are wanted.
    """
    positions = torch.tensor([POSITIONS], device=model.device)
    found: list[Attended] = []
    outputs: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output[0]}))
        for name, module in ((path.rpartition(".")[2], module) for path, module in model.named_modules())
        if name in layers
    ]
    token = _OBSERVED.set((found, outputs))
    try:
        with _attending(model):
            model(input_ids=positions.new_tensor([_TOKENS]), position_ids=positions, use_cache=False)
    finally:
        _OBSERVED.reset(token)
        for hook in hooks:
            hook.remove()
    return found


@contextmanager
def _attending(model: PreTrainedModel) -> Iterator[None]:
    """Let the model call `_attention` in this block."""
    AttentionInterface.register(_IMPLEMENTATION, _attention)
    before = model.config._attn_implementation
    with quiet():
        model.set_attn_implementation(_IMPLEMENTATION)
    try:
        yield
    finally:
        with quiet():
            model.set_attn_implementation(before)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface."""
    observed = _OBSERVED.get()
    if observed is None:
        raise RuntimeError(f"{type(module).__name__} is being observed")
    calls, outputs = observed
    calls.append(
        Attended(
            module=module,
            query=query[0].transpose(0, 1),
            key=key[0].transpose(0, 1),
            value_size=value.shape[-1],
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=softcap or 0.0,
            sinks=s_aux,
            outputs=dict(outputs),
        )
    )
    outputs.clear()
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
