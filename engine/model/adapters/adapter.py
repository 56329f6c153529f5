"""One adapter in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from orcastream.engine.model.adapters.site import Site
from orcastream.engine.native.linear import PackedLinear

Factors = tuple[torch.Tensor, torch.Tensor]
"""`down` `[rank, in_features]` and `up` `[out_features, rank]`."""


@dataclass(frozen=True, slots=True)
class DenseFactor:
    """x `[m, k]` → `[m, n]` by a weight `[n, k]`."""

    weight: torch.Tensor

    @property
    def n(self) -> int:
        """Its columns."""
        return self.weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to the product of one site: up(down(x)), times the adapter's scale, which `up` holds."""

    down: PackedLinear | DenseFactor
    up: PackedLinear | DenseFactor

    @classmethod
    def of(
        cls, site: Site, factors: Mapping[str, Factors], scale_of: Callable[[str], float], dtype: torch.dtype
    ) -> "LowRank":
        """Of those layers of `site` that have `factors`, in float32: their ranks side by side, zeros between them.

        So one product serves all layers of one input, as it does for their own weights.
        """
        present = [layer for layer in site.layers if layer in factors]
        down = torch.cat([factors[layer][0] for layer in present])
        up = torch.zeros(sum(site.widths), len(down))
        row = column = 0
        for layer, width in zip(site.layers, site.widths, strict=True):
            if layer in factors:
                own = factors[layer][1]
                up[row : row + width, column : column + own.shape[1]] = own * scale_of(layer)
                column += own.shape[1]
            row += width
        if site.is_packed:
            return cls(PackedLinear.pack(down.to(dtype), threads=1), PackedLinear.pack(up.to(dtype), threads=1))
        return cls(DenseFactor(down.to(site.device, dtype)), DenseFactor(up.to(site.device, dtype)))

    @property
    def rank(self) -> int:
        """Of all its layers together."""
        return self.down.n

    @property
    def addresses(self) -> tuple[int, int]:
        """Of `down` and `up` where they are packed, for the compiled operators."""
        assert isinstance(self.down, PackedLinear)
        assert isinstance(self.up, PackedLinear)
        return self.down.address, self.up.address

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x `[m, in_features]`; returns `[m, out_features]`."""
        return self.up(self.down(x))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Adapter:
    """What `Adapters.read` gives; it lives as long as somebody holds it.

    `number` is its own among all that its engine has read. `digest` is that of its files: of two with the same one,
    each can go on from keys and values that the other computed. `changes` are by the name of the site.
    """

    name: str
    number: int
    digest: bytes
    changes: Mapping[str, LowRank]

    @property
    def widest_rank(self) -> int:
        """The largest of its changes."""
        return max(change.rank for change in self.changes.values())
