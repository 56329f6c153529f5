"""A decoder of the common kind, as its compiled operator takes it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from orcastream.engine.native.linear import PackedLinear

ATTRIBUTE = "orcastream_decoder"
"""Attribute of a model: the equivalent DecoderModel."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer: packed projections, norms in float32. `sites` are the names of the first four."""

    projections: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    sites: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """The model that native/src/decoder.h computes.

    `dtype` is that of the rows between layers. `embed` maps ids `[num_tokens]` to rows `[num_tokens, hidden_size]`,
    `rotary` positions `[num_tokens]` to float32 cosines and sines `[num_tokens, rotary_size]`.
    """

    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: PackedLinear
    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary_size: int
    intermediate_size: int
    dtype: torch.dtype
    epsilon: float
    scale: float
    activation: int
    embed: Callable[[torch.Tensor], torch.Tensor]
    rotary: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    edges: tuple[int, ...]
    """Numbers of positions beyond which some architectures change the angles of all positions."""

    @property
    def hidden_size(self) -> int:
        """Values per token between layers."""
        return self.head.k
