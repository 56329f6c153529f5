"""Observes what the layers of a model hand to attention, and what a model makes of the outputs of its head."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from orcastream.engine.model.passes.other_kind import OtherKind
from orcastream.engine.model.quiet import quiet

_IMPLEMENTATION = "orcastream_observer"

_HEAD = "lm_head"

POSITIONS = (0, 1, 5, 40)
"""Of the observed tokens: with different angles."""

_TOKENS = (1, 2, 3, 0)

_SPREADS = (100.0, 100.0, 100.0, 1.0)
"""Of the values that replace the outputs of linear layers, for each token: large enough to reach their bounds."""


@dataclass(frozen=True, slots=True)
class Attended:
    """One layer's call of attention, and the linear layers that were computed before it.

    Queries, keys and values are `[tokens, heads, size]`, as attention gets them; the outputs of linear layers, random
    ones in their place, `[tokens, width]`, by the last part of their names.
    """

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    softcap: float
    sinks: torch.Tensor | None
    outputs: Mapping[str, torch.Tensor]


class Observed(NamedTuple):
    """The calls of attention in their order, and for each token the outputs of the head and the logits."""

    calls: list[Attended]
    scores: torch.Tensor
    logits: torch.Tensor


_OBSERVED: ContextVar[tuple[list[Attended], dict[str, torch.Tensor]] | None] = ContextVar("observed", default=None)
"""The calls so far, and the outputs of linear layers since the last one."""


@torch.inference_mode()
def observe(model: PreTrainedModel, layers: Sequence[str]) -> Observed:
    """Compute a few tokens, with attention that yields zeros. Raises OtherKind for a model that does not take this.

    `layers` are the last parts of the names of linear layers whose outputs are wanted. They and those of the head are
    replaced by random ones: those of a model's own weights may be so small, or so similar, that they tell little.
    """
    positions = torch.tensor([POSITIONS], device=model.device)
    found: list[Attended] = []
    outputs: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)

    def replace(name: str, output: torch.Tensor) -> torch.Tensor:
        spreads = torch.tensor(_SPREADS).unsqueeze(1)
        replaced = (torch.randn(output.shape, generator=generator) * spreads).to(output)
        outputs[name] = replaced[0].clone()  # the model may change its own in place
        return replaced

    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: replace(name, output))
        for name, module in ((path.rpartition(".")[2], module) for path, module in model.named_modules())
        if name in (*layers, _HEAD)
    ]
    token = _OBSERVED.set((found, outputs))
    try:
        with _attending(model):
            output = model(input_ids=positions.new_tensor([_TOKENS]), position_ids=positions, use_cache=False)
        return Observed(found, outputs[_HEAD], output.logits[0])
    except Exception as error:
        raise OtherKind(f"{type(model).__name__} takes something else: {error!r}") from error
    finally:
        _OBSERVED.reset(token)
        for hook in hooks:
            hook.remove()


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
            value=value[0].transpose(0, 1),
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=softcap or 0.0,
            sinks=s_aux,
            outputs=dict(outputs),
        )
    )
    outputs.clear()
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
