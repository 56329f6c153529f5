"""Unnormalized probabilities of tokens, and which of them top-k, top-p and min-p keep."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from orcastream.engine.sampling.filters import Filters
from orcastream.engine.sampling.highest import first
from orcastream.engine.sampling.nucleus import comes_late, keep_highest, mass_before, nucleus
from orcastream.engine.sampling.passes import NARROW, one_by_one

TILE = 512
"""Tokens that enter the first race as one entrant; the second race is among the tokens of one tile."""

_FAINTEST = -80.0
"""Scores further below the highest are clamped to this distance: exp is many times slower for denormal results.

No draw can tell: noise spans 2^-32 to 17, so no token with a probability below e^-30 of the likeliest ever wins a race.
"""


class Weights:
    """Weights of the tokens of some rows, in memory that is reused for the rows of the next pass.

    The likeliest token of a row weighs 1. Tokens that the filters drop weigh nothing, with one exception: in a wide
    vocabulary tokens that top_p drops keep their weight. There, rejecting a draw costs far less than finding all
    dropped tokens, which is left to `restrict`. min_p can be applied at once: a token that it keeps has only kept
    tokens before it, so top_p never depends on the others.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.device = device
        self._places = torch.zeros(rows, tiles_of(vocab) * TILE, device=device)
        self._vocab = vocab
        self._spare: torch.Tensor | None = None

    def fill(self, logits: torch.Tensor, filters: Sequence[Filters]) -> list[bool]:
        """Weigh `logits` `[rows, vocab]` float32 with -inf for tokens that cannot be drawn, one of `filters` per row.

        Returns for each row whether its highest logit is finite; draws from a row without one are meaningless.
        """
        rows = len(filters)
        self._logits = logits
        self._values = self._places[:rows, : self._vocab]
        self.tiles = self._places.view(len(self._places), -1, TILE)[:rows]
        best = logits.amax(dim=-1, keepdim=True)
        self._weigh(best, [each.factor for each in filters], [each.top_k for each in filters])
        self._targets = self._masses([each.share for each in filters])
        self._drop_unlikely([each.floor for each in filters])
        if self._vocab <= NARROW and any(map(math.isfinite, self._targets)):
            self.restrict(range(rows))
            self._targets = [math.inf] * rows
        else:
            self.sums = self.tiles.sum(dim=-1)
        return [math.isfinite(value) for [value] in best.tolist()]

    def _weigh(self, best: torch.Tensor, factors: list[float], top_k: list[int]) -> None:
        if one_by_one(self._logits) and 0 < top_k[0] < self._vocab:
            ids = torch.from_numpy(first(self._logits[0].numpy(), top_k[0]))
            few = self._logits[:, ids]
            self._values.zero_()[:, ids] = weigh(few, best, factors, few)
        else:
            weigh(self._logits, best, factors, self._values)
            keep_highest(self._logits, self._values, top_k)

    def _drop_unlikely(self, floors: list[float]) -> None:
        if one_by_one(self._logits) and floors[0]:
            # `threshold` keeps values above its bound in a tenth of the time that a mask takes.
            below = float(np.nextafter(np.float32(floors[0]), np.float32(0)))
            torch.nn.functional.threshold(self._values, below, 0.0, inplace=True)
        elif any(floors):
            self._values *= self._values >= self._values.new_tensor(floors).unsqueeze(1)

    def _masses(self, shares: list[float]) -> list[float]:
        """Return, per row, the weight that may come before a token that top_p keeps."""
        if min(shares) == math.inf:
            return shares
        totals: list[float] = self._values.sum(dim=-1).tolist()
        return [share * total for share, total in zip(shares, totals, strict=True)]

    def dropped(self, rows: Sequence[int], tokens: torch.Tensor) -> list[int]:
        """Return the indices i for which top_p drops `tokens[i]` of `rows[i]`, although it has a weight."""
        asked = [place for place, row in enumerate(rows) if math.isfinite(self._targets[row])]
        if not asked:
            return []
        if one_by_one(self._logits):
            if self._spare is None:
                self._spare = torch.empty(self._vocab)
            ids = tokens.tolist()
            row, values, target = self._logits[0], self._values[0], self._targets[0]
            return [place for place in asked if comes_late(row, values, ids[place], target, self._spare)]
        targets = self._values.new_tensor([self._targets[rows[place]] for place in asked])
        places = torch.tensor(asked, device=tokens.device)
        where = torch.tensor([rows[place] for place in asked], device=tokens.device)
        late = mass_before(self._logits[where], self._values[where], tokens[places]) >= targets
        return [place for place, gone in zip(asked, late.tolist(), strict=True) if gone]

    def restrict(self, rows: Sequence[int]) -> None:
        """Set the weights of tokens that top_p drops in these rows to zero."""
        whole = len(rows) == len(self._targets)
        where: slice | list[int] = slice(None) if whole else list(rows)
        targets = torch.tensor([self._targets[row] for row in rows], dtype=torch.float64, device=self._values.device)
        values = self._values[where]
        self._values[where] = values.mul_(nucleus(self._logits[where], values, targets))
        self.sums = self.tiles.sum(dim=-1)


def weigh(logits: torch.Tensor, best: torch.Tensor, factors: Sequence[float], out: torch.Tensor) -> torch.Tensor:
    """Write exp((logits - best) * factor) into `out`, without denormals; `best` `[rows, 1]`. No factors: all are 1.

    The maximum is subtracted first, so that a low temperature cannot overflow.
    """
    torch.sub(logits, best, out=out)
    if len(set(factors)) > 1:
        out *= out.new_tensor(factors).unsqueeze(1)
    elif factors and factors[0] != 1:
        out *= factors[0]
    return out.clamp_(min=_FAINTEST).exp_()


def tiles_of(vocab: int) -> int:
    """Return how many tiles a vocabulary takes; the last may be shorter."""
    return -(-vocab // TILE)
