"""Makes a transformers model call our attention instead of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from orcastream.engine.attention.arguments import refuse_unknown
from orcastream.engine.attention.base import AttentionBackend, AttentionCall
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.model.quiet import quiet

IMPLEMENTATION = "orcastream"
"""The name of our attention in transformers' registry. No mask function is registered with it: transformers then builds
no mask at all and passes None, as a flat batch needs."""


@dataclass(slots=True)
class AttentionContext:
    """The state that the attention of one model needs besides the tensors of a call; owned by that model's runner.

    It is current during that runner's forward passes, in their thread, so that any number of engines can share a
    process, and even a model. While `probing`, calls are recorded in `shapes` instead of being computed.
    """

    backend: AttentionBackend
    dtype: torch.dtype
    caches: list[LayerCache] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    """The index of each layer's group in `FlatBatch.groups`."""
    shapes: list[LayerShape] = field(default_factory=list)
    layers: dict[nn.Module, int] = field(default_factory=dict)
    """Index into `shapes` and `caches` of each attention module."""
    probing: bool = False
    plan: Any = None

    @contextmanager
    def computing(self, model: PreTrainedModel, batch: FlatBatch, plan: Any = None) -> Iterator[None]:
        """Let the forward passes of `model` in this block compute `batch`, with `plan` if it is given."""
        self.plan = self.backend.plan(batch, self.dtype) if plan is None else plan
        try:
            with self._in_force(model):
                yield
        finally:
            self.plan = None

    @contextmanager
    def recording(self, model: PreTrainedModel) -> Iterator[None]:
        """Let the single forward pass of `model` in this block record its attention layers."""
        self.shapes.clear()
        self.layers.clear()
        self.probing = True
        try:
            with self._in_force(model):
                yield
        finally:
            self.probing = False

    @contextmanager
    def _in_force(self, model: PreTrainedModel) -> Iterator[None]:
        # Other code may have chosen another attention for the model in between.
        if model.config._attn_implementation != IMPLEMENTATION:
            AttentionInterface.register(IMPLEMENTATION, orca_attention)
            with quiet():
                model.set_attn_implementation(IMPLEMENTATION)
        token = _IN_FORCE.set(self)
        try:
            yield
        finally:
            _IN_FORCE.reset(token)

    def record(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Note the shape of one more layer; returns zeros in the shape of an output."""
        if module in self.layers:
            raise UnsupportedModel(f"{type(module).__name__} attends more than once in one forward pass")
        if getattr(module, "is_causal", True) is False:
            raise UnsupportedModel(f"{type(module).__name__} is not causal")
        if not query.shape[2] == key.shape[2] == value.shape[2]:
            raise UnsupportedModel(
                f"{type(module).__name__} hands attention {key.shape[2]} keys and {value.shape[2]} values for "
                f"{query.shape[2]} tokens; this engine keeps one of each per token"
            )
        self.layers[module] = len(self.shapes)
        self.shapes.append(LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3], window))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


_IN_FORCE: ContextVar[AttentionContext | None] = ContextVar("orcastream_attention", default=None)


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

    Raises UnsupportedModel for a mask, and for any other argument that is not known to leave the result unchanged.
    """
    context = _IN_FORCE.get()
    if context is None:
        raise RuntimeError(
            f"{type(module).__name__} is part of an engine: only that engine can compute with it; to use it elsewhere, "
            "choose another attention with set_attn_implementation first"
        )
    refuse_unknown(module, attention_mask, kwargs)
    if context.probing:
        return context.record(module, query, key, value, sliding_window), None
    layer = context.layers[module]
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
