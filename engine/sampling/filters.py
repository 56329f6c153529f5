"""The filters of random draws, as numbers; without torch, so that creating requests does not wait for it."""

import math
from typing import NamedTuple

from orcastream.schemas.sampling import SamplingParams

ROUNDING = 1e-6
"""Sums and shares of float32 probabilities that miss a bound by less than this count as reaching it."""

_LOWEST_TEMPERATURE = 1e-6


class Filters(NamedTuple):
    """Temperature (above 0), then top_k (0: all), top_p (1: all), min_p (0: all), applied in this order."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, params: SamplingParams) -> "Filters | None":
        """Return the filters of random draws; None if the parameters take the likeliest token."""
        if params.temperature == 0:
            return None
        return cls(params.temperature, params.top_k, params.top_p, params.min_p)

    @property
    def factor(self) -> float:
        """What differences between logits are multiplied with."""
        return 1 / max(self.temperature, _LOWEST_TEMPERATURE)

    @property
    def floor(self) -> float:
        """The least weight that min_p keeps, where the likeliest token weighs 1."""
        return self.min_p * (1 - ROUNDING)

    @property
    def share(self) -> float:
        """The share of the weight of which less comes before a token that top_p keeps; infinite if it keeps all.

        The first token is always kept, however small top_p is.
        """
        return max(self.top_p - ROUNDING, ROUNDING**2) if self.top_p < 1 else math.inf


class DrawParams(NamedTuple):
    """What all draws of a request have in common; `factor` 0 takes the first of the highest logits. See Filters."""

    seed: int
    top_k: int
    shares: tuple[float, float, float]
    """factor, floor and share."""

    @classmethod
    def of(cls, params: SamplingParams, seed: int) -> "DrawParams":
        """Return those of a request with these parameters."""
        return cls.under(Filters.of(params), seed)

    @classmethod
    def under(cls, filters: Filters | None, seed: int) -> "DrawParams":
        """Return those of draws under some filters; without filters they take the likeliest token."""
        if filters is None:
            return cls(seed, 0, (0.0, 0.0, math.inf))
        return cls(seed, filters.top_k, (filters.factor, filters.floor, filters.share))
