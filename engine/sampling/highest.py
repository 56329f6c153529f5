"""Finds the highest scores of rows without sorting them entirely."""

import math

import numpy as np
import numpy.typing as npt
import torch

from orcastream.engine.sampling.passes import one_by_one

Row = npt.NDArray[np.float32]

_DEPTH = 64
"""Number of scores that are folded into their maximum in the search for a bound."""
_SPARSE = 2
"""A bound from folded scores is tight enough if there are at least this many folds per wanted score."""
_LEAST = np.finfo(np.float32).min


def highest(scores: torch.Tensor, count: int) -> list[tuple[list[float], list[int]]]:
    """Return values and token ids of the `count` highest of each row of `scores` `[rows, vocab]` float32.

    Highest first, lower ids first on a tie. Fewer if fewer are above -inf.
    """
    if one_by_one(scores):
        return [_highest_of_row(row, count) for row in scores.numpy()]
    values, ids = by_rank(scores, min(count, scores.shape[1]))
    both = torch.stack([values.double(), ids.double()]).tolist()  # one copy to the host
    found = []
    for row, tokens in zip(*both, strict=True):
        num_finite = sum(value > -math.inf for value in row)
        found.append((row[:num_finite], list(map(int, tokens[:num_finite]))))
    return found


def by_rank(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same for all rows at once, values and ids `[rows, count]`, on any device; includes scores of -inf.

    Each score becomes an integer of the same order with the id in its lower bits, so that no two are equal.
    """
    vocab = scores.shape[1]
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0 makes one zero of the two
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(vocab, device=scores.device)
    found = ((ordered << 32) | (vocab - 1 - ids)).topk(count, dim=-1).values
    tokens = vocab - 1 - (found & 0xFFFFFFFF)
    return scores.gather(1, tokens), tokens


def candidates(row: Row, count: int) -> npt.NDArray[np.int64]:
    """Return ascending ids that include the `count` highest scores of a row and none of -inf; rarely many more."""
    if count >= len(row):
        return np.flatnonzero(row > -np.inf)
    folds = len(row) // _DEPTH
    if count * _SPARSE > folds:
        bound = np.partition(row, len(row) - count)[len(row) - count]
        return np.flatnonzero(row >= max(bound, _LEAST))
    # At least `count` scores reach the count-th highest maximum of the folds, so all of the `count` highest do.
    folded = row[: folds * _DEPTH].reshape(_DEPTH, folds)
    maxima = folded.max(axis=0)
    bound = max(np.partition(maxima, folds - count)[folds - count], _LEAST)
    columns = np.flatnonzero(maxima >= bound)
    depths, places = np.nonzero(folded[:, columns] >= bound)
    rest = np.flatnonzero(row[folds * _DEPTH :] >= bound) + folds * _DEPTH
    return np.concatenate([depths * folds + columns[places], rest])


def first(row: Row, count: int) -> npt.NDArray[np.int64]:
    """Return ascending ids of the `count` highest scores, lower ids on a tie; fewer if fewer are above -inf."""
    ids = candidates(row, count)
    surplus = len(ids) - count
    if surplus <= 0:
        return ids
    scores = row[ids]
    lowest = np.partition(scores, surplus)[surplus]
    kept = scores > lowest
    kept[np.flatnonzero(scores == lowest)[: count - np.count_nonzero(kept)]] = True
    chosen: npt.NDArray[np.int64] = ids[kept]
    return chosen


def _highest_of_row(row: Row, count: int) -> tuple[list[float], list[int]]:
    ids = candidates(row, count)
    ids = ids[np.argsort(-row[ids], kind="stable")[:count]]
    return row[ids].tolist(), ids.tolist()
