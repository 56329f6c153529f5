"""Top-k, top-p and min-p, for rows with different settings in one pass."""

from collections.abc import Sequence

import torch

_FIRST_LOOK = 256
"""How many of the likeliest tokens are sorted first; nearly every top-p nucleus lies within."""

_ROUNDING = 1e-6
"""Sums and shares of float32 probabilities that miss a bound by less than this have reached it."""

_LONGER_LOOK = 16
"""How many times as many are sorted next where one does not, until all are."""


def filtered(
    scores: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], min_p: Sequence[float]
) -> torch.Tensor:
    """`scores` `[rows, vocab]` (logits after temperature, any offset) with -inf for the tokens that are dropped.

    top_k keeps the k highest (0: all), top_p the smallest set of those whose renormalised probabilities reach it,
    min_p those of at least this share of the likeliest. Of equal scores the lower token ids are kept first.
    """
    vocab = scores.shape[1]
    sorts = any(0 < k < vocab for k in top_k) or any(p < 1 for p in top_p)
    if sorts:
        limits = torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=scores.device)
        scores = _keep_first(scores, *_counts(scores, limits, scores.new_tensor(list(top_p), dtype=torch.float64)))
    if any(p > 0 for p in min_p):
        floor = scores.amax(dim=-1) + scores.new_tensor(list(min_p)).log() - _ROUNDING
        scores = scores.masked_fill(scores < floor.unsqueeze(1), -torch.inf)
    return scores


def _counts(scores: torch.Tensor, limits: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many tokens each row keeps, and the lowest score among them."""
    vocab = scores.shape[1]
    bounded = limits[limits < vocab]
    width = min(vocab, max(_FIRST_LOOK, int(bounded.max()) if len(bounded) else 0))
    while True:
        highest = scores.topk(width, dim=-1).values
        within_k = torch.arange(width, device=scores.device) < limits.unsqueeze(1)
        exponents = highest.masked_fill(~within_k, -torch.inf)
        # Without a bound by k the whole row counts, also what was not sorted.
        whole = torch.where(limits < vocab, exponents.logsumexp(dim=-1), scores.logsumexp(dim=-1))
        probabilities = (exponents - whole.unsqueeze(1)).exp().double()
        before = probabilities.cumsum(dim=-1) - probabilities
        reached = before >= top_p.unsqueeze(1) - _ROUNDING
        nucleus = (within_k & ~reached).sum(dim=-1).clamp(min=1)
        counts = torch.where(top_p < 1, nucleus, limits)
        # A nucleus that fills all that was sorted may go on behind it.
        if width == vocab or not bool(((top_p < 1) & (limits > width) & (nucleus == width)).any()):
            lowest = highest.gather(1, (counts.clamp(max=width) - 1).unsqueeze(1)).squeeze(1)
            return counts, lowest.masked_fill(counts == vocab, -torch.inf)
        width = min(vocab, width * _LONGER_LOOK)


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
