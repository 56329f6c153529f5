"""A linear layer, or several with the same input side by side, as one product of torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear


@dataclass(frozen=True, slots=True, eq=False)
class DenseLinear:
    """y = x W^T + b with W `[n, k]` and b `[n]`, or None for zeros."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def n(self) -> int:
        """Number of outputs."""
        return self.weight.shape[0]

    @property
    def k(self) -> int:
        """Number of inputs."""
        return self.weight.shape[1]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[num_rows, n]` for x `[num_rows, k]`."""
        return linear(x, self.weight, self.bias)

    @classmethod
    def of(cls, layer: nn.Linear) -> "DenseLinear":
        """Return the product of one layer, with its own weight."""
        return cls(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())

    @classmethod
    def merge(cls, layers: Sequence[nn.Linear]) -> "DenseLinear":
        """Return the product of all `layers`, whose weights become views of the merged one: none is in memory twice."""
        with torch.inference_mode(False), torch.no_grad():
            weight = torch.cat([layer.weight.detach() for layer in layers])
            parts = weight.split_with_sizes([layer.out_features for layer in layers])
            for layer, part in zip(layers, parts, strict=True):
                layer.weight = nn.Parameter(part, requires_grad=False)
            biases = [weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
            has_bias = any(layer.bias is not None for layer in layers)
            return cls(weight, torch.cat([bias.detach() for bias in biases]) if has_bias else None)
