"""The tokens that top-k and top-p keep, found without sorting a wide row unless necessary."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import threshold

from orcastream.engine.sampling.highest import candidates
from orcastream.engine.sampling.passes import one_by_one

_FIRST_LOOK = 256
"""How many of the likeliest tokens are sorted first; almost every nucleus of a peaked distribution is within them."""


def keep_highest(logits: torch.Tensor, weights: torch.Tensor, limits: Sequence[int]) -> None:
    """Set the `weights` `[rows, vocab]` of all but the limits[i] highest logits of row i to zero (0: keep all)."""
    vocab = logits.shape[1]
    rows = [row for row, limit in enumerate(limits) if 0 < limit < vocab]
    if not rows:
        return
    whole = len(rows) == len(limits)
    some = logits if whole else logits[rows]
    counts = torch.tensor([limits[row] for row in rows], device=logits.device).unsqueeze(1)
    lowest = _descending(some, max(limits[row] for row in rows)).gather(1, counts - 1)
    kept = _first_of(some, lowest, counts)
    if whole:
        weights *= kept
    else:
        weights[rows] *= kept


def mass_before(logits: torch.Tensor, weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the weight of all tokens before `tokens[i]` in row i: a higher logit, or an equal one and a lower id."""
    own = logits.gather(1, tokens.unsqueeze(1))
    lower = torch.arange(logits.shape[1], device=logits.device) < tokens.unsqueeze(1)
    return ((logits > own) | ((logits == own) & lower)).mul(weights).sum(dim=-1)


def comes_late(logits: torch.Tensor, weights: torch.Tensor, token: int, target: float, spare: torch.Tensor) -> bool:
    """Whether `target` or more of the weight comes before `token` in one row `[vocab]`; `spare` has the same size.

    Heavier tokens come before it, lighter ones do not. Logits and ids are compared only if tokens of equal weight
    decide. Sums of more terms never round to less, so all three comparisons agree.
    """
    own = weights[token]
    heavier = spare.copy_(weights)
    if float(threshold(heavier, float(own.nextafter(own.new_zeros(()))), 0.0, inplace=True).sum()) < target:
        return False
    if float(threshold(heavier, float(own), 0.0, inplace=True).sum()) >= target:
        return True
    torch.ge(logits[:token], logits[token], out=spare[:token])
    torch.gt(logits[token:], logits[token], out=spare[token:])
    return float(spare.mul_(weights).sum()) >= target


def nucleus(logits: torch.Tensor, weights: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return which tokens of each row `[rows, vocab]` top_p keeps: less than `targets` `[rows]` weight comes before.

    Weights are in the order of their logits, except zero weights, which come last.
    """
    ranked, sums = logits[:, :0], targets.new_zeros(1, 1)
    if one_by_one(logits) and len(logits) == 1:
        look = torch.from_numpy(candidates(logits[0].numpy(), _FIRST_LOOK))
        ranked, sums = _sorted(logits[:, look], weights[:, look])
    if bool((sums[:, -1] < targets).any()):
        ranked, sums = _sorted(logits, weights)
    counts = (sums < targets.unsqueeze(1)).sum(dim=-1, keepdim=True) + 1
    lowest = ranked.gather(1, (counts - 1).clamp(max=ranked.shape[1] - 1))
    return _first_of(logits, lowest.masked_fill_(counts > ranked.shape[1], -torch.inf), counts)


def _sorted(logits: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits in descending order, and the cumulative sums of the weights."""
    return _descending(logits), _descending(weights).cumsum(dim=-1, dtype=torch.float64)


def _descending(values: torch.Tensor, width: int | None = None) -> torch.Tensor:
    """Return the highest of each row `[rows, n]` in descending order, at least `width` of them (default: all)."""
    if values.device.type == "cpu":
        return torch.from_numpy(-np.sort(-values.numpy(), axis=-1))
    return values.topk(width or values.shape[1], dim=-1).values


def _first_of(logits: torch.Tensor, lowest: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return, as bool, the first `counts` tokens of each row, the last of which has the logit `lowest`."""
    kept = logits >= lowest
    if bool((kept.count_nonzero(dim=-1).unsqueeze(1) > counts).any()):
        equal = logits == lowest
        room = counts - (logits > lowest).sum(dim=-1, keepdim=True)
        kept &= ~equal | (equal.cumsum(dim=-1) <= room)
    return kept
