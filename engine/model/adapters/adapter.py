"""One LoRA adapter in memory."""

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
        """Output columns."""
        return self.weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change to the product of one site: up(down(x)), times the adapter's scale, which is included in `up`."""

    down: PackedLinear | DenseFactor
    up: PackedLinear | DenseFactor

    @classmethod
    def of(
        cls, site: Site, factors: Mapping[str, Factors], scale_of: Callable[[str], float], dtype: torch.dtype
    ) -> "LowRank":
        """Combine the float32 `factors` of the layers of `site`: their ranks side by side, with zeros elsewhere.

        One product then serves all layers with the same input, as it does for their own weights.
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
        """The total rank of all its layers."""
        return self.down.n

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of packed `down` and `up`, for the compiled operators."""
        assert isinstance(self.down, PackedLinear)
        assert isinstance(self.up, PackedLinear)
        return self.down.address, self.up.address

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return up(down(x)) `[m, out_features]` for x `[m, in_features]`."""
        return self.up(self.down(x))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Adapter:
    """An adapter from `Adapters.read`; it stays in memory while anything references it.

    `number` is unique among all adapters that the engine has loaded. `digest` is the digest of its weights and scales:
    two adapters with the same digest can share keys and values. `changes` are by the name of the site.
    """

    name: str
    number: int
    digest: bytes
    changes: Mapping[str, LowRank]

    @property
    def widest_rank(self) -> int:
        """The largest rank of its changes."""
        return max(change.rank for change in self.changes.values())
