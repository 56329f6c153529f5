"""A decoder of the common kind, as the classes that compute one as a whole take it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from orcastream.engine.native.gate import Gate


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
class Norm:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension: a LayerNorm; or, unless it
    `centers`, with 0 for the mean: an RMSNorm. Weight and bias are in float32.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float
    centers: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 for x `[..., len(weight)]`."""
        x = x.float()
        if self.centers:
            x = x - x.mean(-1, keepdim=True)
        normalized = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight
        return normalized if self.bias is None else normalized + self.bias


@dataclass(frozen=True, slots=True)
class GatedMLP(Generic[L]):
    """down(activation(gate) * up), with gate and up side by side."""

    gate_up: L
    down: L


@dataclass(frozen=True, slots=True)
class PlainMLP(Generic[L]):
    """down(activation(up))."""

    up: L
    down: L


@dataclass(frozen=True, slots=True)
class Router(Generic[L]):
    """How a mixture chooses `choices` experts for each token, and weights them.

    The outputs of `scores`, in float32 or in the rows' dtype, become chances by `scoring`. The experts with the highest
    chances are chosen, of `chosen_groups` of the `groups` into which experts are divided: those whose two highest have
    the highest sums. A `correction`, float32 `[experts]`, is added to chances to choose by. The weights are the chances
    of the chosen ones, divided by their sum if the router `normalizes`, times `factor`.
    """

    scores: L
    in_float32: bool
    scoring: int
    correction: torch.Tensor | None
    choices: int
    groups: int
    chosen_groups: int
    normalizes: bool
    least_sum: float
    factor: float


@dataclass(frozen=True, slots=True)
class SharedExpert(Generic[L]):
    """A gated MLP that computes all tokens; with `weight`, times the logistic function of its only output."""

    mlp: GatedMLP[L]
    activation: int
    weight: L | None


@dataclass(frozen=True, slots=True)
class Mixture(Generic[L]):
    """Gated MLPs of one shape, of which the router chooses some for each token, and one that all tokens share."""

    router: Router[L]
    gate_up: tuple[L, ...]
    down: tuple[L, ...]
    gate: Gate
    shared: SharedExpert[L] | None


@dataclass(frozen=True, slots=True)
class DecoderLayer(Generic[L]):
    """The weights of one layer: merged projections, and norms of the stream and of results, as in native/src/decoder.h.

    `sinks` are in float32; `table` is the index of its angles, None if positions are not rotated. `sites` are the names
    of projections, output, and the two parts of an MLP.
    """

    projections: L
    output: L
    mlp: GatedMLP[L] | PlainMLP[L] | Mixture[L]
    input_norm: Norm | None
    output_norm: Norm | None
    mlp_norm: Norm | None
    down_norm: Norm | None
    query_norm: Norm | None
    key_norm: Norm | None
    sinks: torch.Tensor | None
    table: int | None
    sites: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of positions.

    Each of `tables` maps positions `[num_tokens]` to float32 cosines and sines `[num_tokens, size]`, for value i of a
    head paired with i + size / 2; `by_neighbors`: value 2 i with 2 i + 1, whose sines differ in sign.
    """

    tables: tuple[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], ...]
    size: int
    by_neighbors: bool
    edges: tuple[int, ...]
    """Numbers of positions beyond which some architectures change the angles of all positions."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Numbers by which a model multiplies embeddings, the results of a layer's parts, and logits; `logit_cap` bounds
    logits, cap * tanh(logit / cap), and `softcap` the scores of attention (0: no bound).
    """

    embedding: float = 1.0
    residual: float = 1.0
    logit: float = 1.0
    logit_cap: float = 0.0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class DecoderModel(Generic[L]):
    """The model that native/src/decoder.h and, without some of its variants, TritonDecoder compute.

    `dtype` is that of the rows between layers. `embedding` has the row of each token: `[vocab, hidden_size]`, or a
    linear layer, of whose weights they are rows. If layers are `parallel`, an MLP reads what attention reads.
    """

    embedding: torch.Tensor | L
    layers: tuple[DecoderLayer[L], ...]
    final_norm: Norm
    head: L
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    dtype: torch.dtype
    scale: float
    activation: int
    rotary: Rotary
    factors: Factors
    parallel: bool

    @property
    def hidden_size(self) -> int:
        """Values per token between layers."""
        return self.head.k
