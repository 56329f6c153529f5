"""The most probable tokens under the model itself, without temperature or filters."""

import math
from collections.abc import Sequence

import torch

from engine.sampling.highest import highest
from engine.sampling.passes import gathered, passes
from engine.sampling.race import weights_of


def likeliest(logits: torch.Tensor, row_indices: Sequence[int], count: int) -> list[list[tuple[int, float]]]:
    """(token id, log probability) of the `count` most probable tokens, for each of those rows of `logits`.

    logits `[rows, vocab]` of any floating type; probabilities are the softmax of their float32 values, logarithms are
    natural. Most probable first, of equal logits the lower id first. An index may occur more than once. Fewer than
    `count` where fewer tokens have a logit above -inf; none where the row has no finite highest one. ValueError if
    `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count is {count}; it is at least 0")
    return most_probable(logits, row_indices, count, log_totals(logits, row_indices))


def most_probable(
    logits: torch.Tensor, row_indices: Sequence[int], count: int, totals: Sequence[float | None]
) -> list[list[tuple[int, float]]]:
    """As `likeliest`, with the `log_totals` of the same rows."""
    found: list[list[tuple[int, float]]] = [[] for _ in row_indices]
    usable = [place for place, total in enumerate(totals) if total is not None] if count else []
    for places in passes(usable, logits):
        rows = gathered(logits, [row_indices[place] for place in places])
        for place, (values, tokens) in zip(places, highest(rows, count), strict=True):
            total = totals[place] or 0.0
            found[place] = [(token, value - total) for token, value in zip(tokens, values, strict=True)]
    return found


def log_totals(logits: torch.Tensor, row_indices: Sequence[int]) -> list[float | None]:
    """log(sum(exp(row))) of those rows, in double precision; None where the highest logit is not finite."""
    totals: list[float | None] = []
    for indices in passes(row_indices, logits):
        rows = gathered(logits, indices)
        best = rows.amax(dim=-1, keepdim=True)
        sums = weights_of(rows - best).sum(dim=-1)
        logs = sums.double().log() + best.squeeze(1)
        totals += [total if math.isfinite(total) else None for total in logs.tolist()]
    return totals
