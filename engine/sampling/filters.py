"""Top-k, top-p and min-p, for rows with different settings."""

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.cut import ROUNDING, cut
from engine.sampling.highest import Row

_FIRST_LOOK = 256
"""How many of the likeliest tokens are sorted first; nearly every top-p nucleus lies within."""
_NARROW = 8192
"""Rows of a CPU up to this many tokens are sorted whole, together; wider ones are cut one by one."""


def filtered(
    scores: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], min_p: Sequence[float]
) -> torch.Tensor:
    """`scores` `[rows, vocab]` (logits after temperature, any offset) with -inf for the tokens that are dropped.

    top_k keeps the k highest (0: all), top_p the smallest set of those whose renormalised probabilities reach it,
    min_p those of at least this share of the likeliest. Of equal scores the lower token ids are kept first. A row
    without a finite highest score comes back with as little sense as it went in.
    """
    vocab = scores.shape[1]
    sorts = any(0 < k < vocab for k in top_k) or any(p < 1 for p in top_p)
    if not sorts and not any(p > 0 for p in min_p):
        return scores
    if scores.device.type == "cpu" and vocab > _NARROW:
        rows = [_filtered_row(*row) for row in zip(scores, top_k, top_p, min_p, strict=True)]
        return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
    if sorts:
        limits = torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=scores.device)
        scores = _keep_first(scores, *_counts(scores, limits, scores.new_tensor(list(top_p), dtype=torch.float64)))
    if any(p > 0 for p in min_p):
        floor = scores.amax(dim=-1) + scores.new_tensor(list(min_p)).log() - ROUNDING
        scores = scores.masked_fill(scores < floor.unsqueeze(1), -torch.inf)
    return scores


def _filtered_row(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The same for one wide row on a CPU."""
    row: Row = scores.numpy()
    highest = float(row.max())
    if not np.isfinite(highest):
        return scores
    if highest:
        row = row - np.float32(highest)
    where = cut(row, top_k, top_p)
    floor = np.float32(np.log(np.float32(min_p)) - ROUNDING) if min_p else np.float32(-np.inf)
    lowest = max(np.float32(where.lowest), floor)
    # Of the vectorised operations this is the one that needs no mask; it keeps what is above its bound.
    below = float(np.nextafter(lowest, np.float32(-np.inf)))
    left = torch.nn.functional.threshold(torch.from_numpy(row), below, -torch.inf)
    if where.surplus and lowest == where.lowest:
        left[torch.from_numpy(np.flatnonzero(row == lowest)[-where.surplus :])] = -torch.inf
    return torch.where(left > -torch.inf, scores, left) if highest else left


def _counts(scores: torch.Tensor, limits: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many tokens each row keeps, and the lowest score among them."""
    vocab = scores.shape[1]
    bounded = limits[limits < vocab]
    width = min(vocab, max(_FIRST_LOOK, int(bounded.max()) if len(bounded) else 0))
    while True:
        highest = _ranked(scores, width)
        width = highest.shape[1]
        within_k = torch.arange(width, device=scores.device) < limits.unsqueeze(1)
        exponents = highest.masked_fill(~within_k, -torch.inf)
        # Without a bound by k the whole row counts, also what was not sorted.
        whole = torch.where(limits < vocab, exponents.logsumexp(dim=-1), scores.logsumexp(dim=-1))
        probabilities = (exponents - whole.unsqueeze(1)).exp().double()
        before = probabilities.cumsum(dim=-1) - probabilities
        reached = before >= top_p.unsqueeze(1) - ROUNDING
        nucleus = (within_k & ~reached).sum(dim=-1).clamp(min=1)
        counts = torch.where(top_p < 1, nucleus, limits)
        # A nucleus that fills all that was sorted may go on behind it.
        if width == vocab or not bool(((top_p < 1) & (limits > width) & (nucleus == width)).any()):
            lowest = highest.gather(1, (counts.clamp(max=width) - 1).unsqueeze(1)).squeeze(1)
            return counts, lowest.masked_fill(counts == vocab, -torch.inf)
        width = vocab


def _ranked(scores: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` highest scores of each row, highest first; all of them where that is no slower."""
    if scores.device.type == "cpu":
        return torch.from_numpy(-np.sort(-scores.numpy(), axis=-1))
    return scores.topk(width, dim=-1).values


def _keep_first(scores: torch.Tensor, counts: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """Drop what is below `lowest`, and of those equal to it the last ones, until `counts` are left."""
    lowest = lowest.unsqueeze(1)
    kept = scores >= lowest
    surplus = kept.sum(dim=-1) > counts
    if bool(surplus.any()):
        equal = scores == lowest
        room = counts.unsqueeze(1) - (scores > lowest).sum(dim=-1, keepdim=True)
        kept &= ~equal | (equal.cumsum(dim=-1) <= room)
    return scores.masked_fill(~kept, -torch.inf)
