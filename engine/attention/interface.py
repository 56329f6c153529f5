"""How a transformers model calls our attention instead of its own."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from engine.attention.base import AttentionBackend, AttentionCall
from engine.batch.flat_batch import FlatBatch
from engine.errors import UnsupportedModel
from engine.kv.layout import LayerShape
from engine.kv.store import LayerCache
from engine.model.quiet import quiet

IMPLEMENTATION = "orcastream"
"""The name of our attention in transformers' registry. No mask function goes with it: for a name without one,
transformers builds no mask at all and hands None down, which is what a flat batch needs."""

_CONTEXT = "orcastream_attention"
_LAYER = "orcastream_layer"


@dataclass(slots=True)
class AttentionContext:
    """What the attention of one model needs beside the tensors of a call; owned by that model's runner.

    It is found through an attribute of each of the model's modules, so that any number of engines live in one process.
    While `probing`, calls are recorded in `shapes` instead of being computed.
    """

    backend: AttentionBackend
    dtype: torch.dtype
    caches: list[LayerCache] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    """The group of each layer: which of `FlatBatch.groups` is its own."""
    shapes: list[LayerShape] = field(default_factory=list)
    probing: bool = False
    plan: Any = None

    def attach(self, model: PreTrainedModel) -> None:
        """Make every attention call of `model` come here."""
        AttentionInterface.register(IMPLEMENTATION, orca_attention)
        with quiet():
            model.set_attn_implementation(IMPLEMENTATION)
        for module in model.modules():
            setattr(module, _CONTEXT, self)
            module.__dict__.pop(_LAYER, None)

    def begin(self, batch: FlatBatch) -> None:
        """The next forward pass computes `batch`."""
        self.plan = self.backend.plan(batch, self.dtype)

    def record(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Note the shape of one more layer; returns zeros in the shape of an output."""
        if hasattr(module, _LAYER):
            raise UnsupportedModel(f"{type(module).__name__} attends more than once in one forward pass")
        if getattr(module, "is_causal", True) is False:
            raise UnsupportedModel(f"{type(module).__name__} is not causal")
        setattr(module, _LAYER, len(self.shapes))
        self.shapes.append(LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3], window))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def orca_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query `[1, heads, num_tokens, size]` → `[1, num_tokens, heads, size]`.

    Keyword arguments that are not named here are either without effect on the result or found out by the self-check.
    """
    context: AttentionContext = getattr(module, _CONTEXT)
    if context.probing:
        return context.record(module, query, key, value, sliding_window), None
    layer = getattr(module, _LAYER)
    if sliding_window != context.shapes[layer].window:
        raise UnsupportedModel(f"the window of layer {layer} changes from call to call")
    call = AttentionCall(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        group=context.groups[layer],
        softcap=softcap,
        sinks=s_aux,
    )
    output = context.backend.attend(context.plan, context.caches[layer], query[0], key[0], value[0], call)
    return output.unsqueeze(0), None
