"""Where top-k and top-p cut one wide row on a CPU, without sorting all of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.highest import Row, candidates
from engine.sampling.race import weights_of

ROUNDING = 1e-6
"""Sums and shares of float32 probabilities that miss a bound by less than this have reached it."""

_FIRST_LOOK = 256
"""How many of the likeliest tokens are sorted first; nearly every nucleus of a peaked distribution lies within."""
_SAMPLE = 4096
"""About how many scores are sorted to guess where a wide nucleus ends."""
_DEVIATIONS = 3.0
"""How many standard deviations the guess may be off before the whole row is sorted."""

_Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cut:
    """What a row keeps: the scores from `lowest` on, without the last `surplus` of those that equal it."""

    lowest: float
    surplus: int


_EVERYTHING = Cut(-np.inf, 0)


def cut(row: Row, top_k: int, top_p: float) -> Cut:
    """The cut of `row`, whose highest score is 0: the `top_k` first (0: all), and of these the nucleus of `top_p`."""
    if 0 < top_k < len(row):
        return _among_first(row, top_k, top_p)
    return _nucleus(row, top_p) if top_p < 1 else _EVERYTHING


def _among_first(row: Row, top_k: int, top_p: float) -> Cut:
    ranked = _descending(row[candidates(row, top_k)])
    count: int | None = None
    if top_p < 1:
        weights = _weights(ranked[:top_k])
        count = _reach(weights, (top_p - ROUNDING) * float(weights.sum()))
    return _after(ranked, top_k if count is None else count)


def _nucleus(row: Row, top_p: float) -> Cut:
    weights = weights_of(torch.from_numpy(row))
    total = float(weights.sum())
    target = (top_p - ROUNDING) * total
    ceiling, mass = np.inf, 0.0
    # No weight is above 1: a nucleus that is heavier than the first look is long cannot lie within it.
    if target <= _FIRST_LOOK:
        ranked = _descending(row[candidates(row, _FIRST_LOOK)])
        first = _weights(ranked)
        count = _reach(first, target)
        if count is not None:
            return _after(ranked, count)
        ceiling, mass = float(ranked[-1]), float(first[ranked > ranked[-1]].sum())
    found = _near(row, weights, target, _Estimate.of(row, ceiling, mass, total))
    if found is None:
        ranked = _descending(row)
        found = _after(ranked, _reach(_weights(ranked), target) or len(ranked))
    return found


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A sample of a row's scores, highest first, and estimates from it: the weight of all scores from the highest to
    each of them, and the sum of squared weights, which is the variance of such an estimate.
    """

    scores: Row
    sums: _Weights
    squares: _Weights

    @classmethod
    def of(cls, row: Row, ceiling: float, mass: float, total: float) -> "_Estimate":
        """Every n-th score speaks for n of its kind; those above `ceiling` are known to weigh `mass` of `total`."""
        scores = _descending(row[:: max(1, len(row) // _SAMPLE) | 1])
        scores = scores[scores <= ceiling]
        weights = _weights(scores)
        weights *= (total - mass) / max(float(weights.sum()), np.finfo(np.float64).tiny)
        return cls(scores, weights.cumsum() + mass, np.square(weights).cumsum())

    def pivot(self, target: float) -> int:
        """Where `target` is reached, by the estimate."""
        return min(int(np.searchsorted(self.sums, target)), len(self.scores) - 1)

    def below(self, pivot: int, missing: float) -> float:
        """A score such that from the pivot down to it there is, in all likelihood, a weight of `missing`."""
        sums, squares = self.sums[pivot:] - self.sums[pivot], self.squares[pivot:] - self.squares[pivot]
        enough = np.flatnonzero(sums - _DEVIATIONS * np.sqrt(squares) >= missing)
        return float(self.scores[pivot + enough[0]]) if len(enough) else -np.inf

    def above(self, pivot: int, excess: float) -> float:
        """A score such that from it down to the pivot there is, in all likelihood, a weight of `excess`."""
        sums, squares = self.sums[pivot] - self.sums[:pivot], self.squares[pivot] - self.squares[:pivot]
        enough = np.flatnonzero(sums - _DEVIATIONS * np.sqrt(squares) >= excess)
        return float(self.scores[enough[-1]]) if len(enough) else np.inf


def _near(row: Row, weights: torch.Tensor, target: float, estimate: _Estimate) -> Cut | None:
    """The cut where the weights from the highest score on reach `target`; None where it is not near its estimate.

    The weight above the estimated score is summed up exactly, which tells the side and the distance of the true one.
    So only the scores from there to a little past that distance are sorted.
    """
    pivot = estimate.pivot(target)
    score = float(estimate.scores[pivot])
    scores = torch.from_numpy(row)
    heavier = torch.gt(scores, score, out=torch.empty_like(scores)).mul_(weights)
    before = float(heavier.sum())
    if before < target:
        between = (row <= score) & (row >= estimate.below(pivot, target - before))
        ranked = _descending(row[np.flatnonzero(between)])
        near = _weights(ranked)
    else:
        between = (row > score) & (row <= estimate.above(pivot, before - target))
        ranked = _descending(row[np.flatnonzero(between)])
        near = _weights(ranked)
        before -= float(near.sum())
    count = _reach(near, target - before) if before < target else None
    return None if count is None else _after(ranked, count)


def _descending(scores: Row) -> Row:
    return np.sort(scores)[::-1]


def _weights(scores: Row) -> _Weights:
    return np.exp(scores, dtype=np.float64)


def _reach(weights: _Weights, target: float) -> int | None:
    """How many of the weights, from the first on, it takes to reach `target`; None if they do not."""
    count = int(np.searchsorted(weights.cumsum(), target)) + 1
    return count if count <= len(weights) else None


def _after(ranked: Row, count: int) -> Cut:
    """The cut after the first `count` of `ranked`: scores in falling order, and all of a row that equal one of them."""
    if count >= len(ranked):
        return Cut(float(ranked[-1]), 0)
    lowest = ranked[count - 1]
    return Cut(float(lowest), int(np.searchsorted(-ranked, -lowest, side="right")) - count)
