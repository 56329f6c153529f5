"""The most probable tokens under the model itself, without temperature or filters."""

import math
from collections.abc import Sequence

import torch

from orcastream.engine.batch.transfer import copied
from orcastream.engine.sampling.highest import highest
from orcastream.engine.sampling.passes import gathered, one_by_one, passes, rows_at_once
from orcastream.engine.sampling.weights import weigh


def likeliest(logits: torch.Tensor, row_indices: Sequence[int], count: int) -> list[list[tuple[int, float]]]:
    """Return (token id, log probability) of the `count` most probable tokens, for each of those rows of `logits`.

    logits `[rows, vocab]` of any floating type; probabilities are the softmax of their float32 values, logarithms are
    natural. Most probable first, lower ids first on a tie. An index may occur more than once. Fewer than `count` if
    fewer tokens have a logit above -inf; none if the highest logit of the row is not finite. Raises ValueError if
    `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count is {count}; it is at least 0")
    return [pairs for _, pairs in ranked(logits, row_indices, count)]


def ranked(logits: torch.Tensor, row_indices: Sequence[int], count: int) -> list[tuple[float, list[tuple[int, float]]]]:
    """Return log(sum(exp(row))) and the result of `likeliest` for each of those rows; NaN if that is empty."""
    found: list[tuple[float, list[tuple[int, float]]]] = []
    spare = torch.empty(min(len(row_indices), rows_at_once(logits)), logits.shape[1], device=logits.device)
    for indices in passes(row_indices, logits):
        rows = gathered(logits, indices)
        first = highest(rows, max(count, 1))
        best = copied([values[0] if values else math.nan for values, _ in first], rows.device).float().unsqueeze(1)
        sums = weigh(rows, best, (), spare[: len(rows)]).sum(dim=-1)
        totals = (sums.double().log() + best.squeeze(1)).tolist()
        for total, (values, tokens) in zip(totals, first, strict=True):
            pairs = [(token, value - total) for token, value in zip(tokens[:count], values, strict=False)]
            found.append((total, pairs) if math.isfinite(total) else (math.nan, []))
    return found


def num_above(logits: torch.Tensor, bounds: torch.Tensor) -> list[int]:
    """Return how many logits of each row of `logits` `[rows, vocab]` are above its bound; `bounds` `[rows, 1]`."""
    if one_by_one(logits):
        return [int((row > bound).count_nonzero()) for row, bound in zip(logits, bounds, strict=True)]
    return [int(count) for count in (logits > bounds).sum(dim=1).tolist()]
