"""Which token a draw takes from its distribution."""

from collections.abc import Sequence

import torch

from engine.sampling.random import draw_keys, exponential_noise, next_keys

_TILE = 512
"""Tokens that enter the first race as one; the second race is among the tokens of one tile."""

FAINTEST = -80.0
"""Scores this far below the highest count as just as unlikely: exp is many times slower where results are denormal.

No draw can tell: noise spans 2^-32 to 17, so that nothing less likely than e^-30 of the likeliest ever wins a race.
"""


class Race:
    """One draw per row in two exponential races: over tiles of the vocabulary, then within the tile that won.

    In an exponential race the entrant with the smallest noise / weight wins, noise being Exponential(1), and each wins
    with probability weight / total: the first of independent exponential arrivals. Tiles race with the sums of their
    tokens' weights and noise of their own, so a token wins with P(tile) · P(token | tile), its share of the whole,
    exactly; and the noise needed is one number per tile and per token of one tile, not one per token of the vocabulary.

    A choice changes only if a leader is overtaken. Where rounding moves the logits by at most d, log-weights of tiles
    move by at most d too (a sum of weights moves no further than its terms), so each of the two races flips with a
    probability of the order of d, in a vocabulary of any size. The inversion of a cumulative sum would flip with the
    sum of the errors of all tokens before the chosen one. A token that a filter lets in or drops by rounding acts on
    the first race through its share of its tile only.
    """

    def __init__(self, seeds: Sequence[int], positions: Sequence[int], vocab: int, device: torch.device) -> None:
        """Row i draws for (seeds[i], positions[i])."""
        self._token_keys = draw_keys(_tensor(seeds, device), _tensor(positions, device))
        self._vocab = vocab
        self._within = torch.arange(_TILE, device=device)
        tiles = torch.arange(-(-vocab // _TILE), device=device).expand(len(seeds), -1)
        self._tile_noise = exponential_noise(next_keys(self._token_keys), tiles).log_()
        self._starts: list[torch.Tensor] = []
        self._entrants: list[torch.Tensor] = []
        self._entered = 0

    def enter(self, scores: torch.Tensor, sizes: Sequence[int]) -> None:
        """Run the first race of the rows that come next: as many as `sizes[i]` draw from `scores[i]`.

        scores `[distributions, vocab]`: log-weights, -inf for what cannot be drawn; the highest of each row is 0.
        """
        rows = slice(self._entered, self._entered + sum(sizes))
        self._entered = rows.stop
        weights = _tile_weights(scores).log_()
        offsets = self._within
        if len(sizes) > 1:
            owners = torch.arange(len(sizes), device=scores.device).repeat_interleave(_tensor(sizes, scores.device))
            weights = weights[owners]
            offsets = self._within + (owners * self._vocab).unsqueeze(1)
        starts = (weights - self._tile_noise[rows]).argmax(dim=-1, keepdim=True).mul_(_TILE)
        self._starts.append(starts)
        # What the last tile lacks is taken from anywhere; it does not race.
        self._entrants.append(scores.take((starts + offsets).clamp_(max=scores.numel() - 1)))

    def winners(self) -> list[int]:
        """Run the second race; the token of each row."""
        starts = torch.cat(self._starts)
        tokens = starts + self._within
        arrivals = torch.cat(self._entrants) - exponential_noise(self._token_keys, tokens).log_()
        arrivals.masked_fill_(tokens >= self._vocab, -torch.inf)
        winners: list[int] = (starts.squeeze(1) + arrivals.argmax(dim=-1)).tolist()
        return winners


def weights_of(scores: torch.Tensor) -> torch.Tensor:
    """exp of scores at or below 0; what is fainter than `FAINTEST` weighs as much as that."""
    return scores.clamp(min=FAINTEST).exp_()


def _tile_weights(scores: torch.Tensor) -> torch.Tensor:
    """The sum of the weights of each tile, `[distributions, tiles]`; the last tile may be short."""
    weights = weights_of(scores)
    full = weights.shape[1] // _TILE * _TILE
    sums = weights[:, :full].reshape(len(weights), -1, _TILE).sum(dim=-1) if full else weights[:, :0]
    return sums if full == weights.shape[1] else torch.cat([sums, weights[:, full:].sum(dim=-1, keepdim=True)], dim=1)


def _tensor(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
