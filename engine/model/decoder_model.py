"""A decoder of the common kind, as the classes that compute one as a whole take it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch


class Linear(Protocol):
    """A linear layer with `n` outputs and `k` inputs."""

    @property
    def n(self) -> int:
        """Number of outputs."""

    @property
    def k(self) -> int:
        """Number of inputs."""


L = TypeVar("L", bound=Linear)

ATTRIBUTE = "orcastream_decoder"
"""Attribute of a model: the equivalent DecoderModel."""


@dataclass(frozen=True, slots=True)
class GatedMLP(Generic[L]):
    """down(activation(gate) * up), with gate and up side by side."""

    gate_up: L
    down: L


@dataclass(frozen=True, slots=True)
class Mixture(Generic[L]):
    """Gated MLPs of one shape, of which each token takes the `choices` with the highest outputs of the router.

    Their weights are the softmax of all outputs; if the mixture `normalizes`, those of a token's add up to one.
    """

    router: L
    gate_up: tuple[L, ...]
    down: tuple[L, ...]
    choices: int
    normalizes: bool
    activation: int


@dataclass(frozen=True, slots=True)
class DecoderLayer(Generic[L]):
    """The weights of one layer: merged projections, norms in float32. `sites` are the names of projections, output, and
    the two parts of a gated MLP.
    """

    projections: L
    output: L
    mlp: GatedMLP[L] | Mixture[L]
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    sites: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class DecoderModel(Generic[L]):
    """The model that native/src/decoder.h and TritonDecoder compute.

    `dtype` is that of the rows between layers. `embedding` has the row of each token: `[vocab, hidden_size]`, or a
    linear layer, of whose weights they are rows. `rotary` maps positions `[num_tokens]` to float32 cosines and sines
    `[num_tokens, rotary_size]`.
    """

    embedding: torch.Tensor | L
    layers: tuple[DecoderLayer[L], ...]
    final_norm: torch.Tensor
    head: L
    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary_size: int
    intermediate_size: int
    dtype: torch.dtype
    epsilon: float
    scale: float
    activation: int
    rotary: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    edges: tuple[int, ...]
    """Numbers of positions beyond which some architectures change the angles of all positions."""

    @property
    def hidden_size(self) -> int:
        """Values per token between layers."""
        return self.head.k
