"""Exponential races: which token a draw takes from weights."""

from collections.abc import Sequence

import torch

from orcastream.engine.sampling.filters import Filters
from orcastream.engine.sampling.random import draw_keys, exponential_noise, next_keys
from orcastream.engine.sampling.weights import TILE, Weights, tiles_of

ATTEMPTS = 4
"""Races whose winner may be a token that the filters drop; all miss a nucleus of 0.9 with probability 10^-4."""


class Race:
    """One draw per row: an exponential race over tiles of the vocabulary, then one within the winning tile.

    In an exponential race the entrant with the smallest noise / weight wins, where noise is Exponential(1), and each
    wins with probability weight / total: the first of independent exponential arrivals. Tiles race with the sums of
    their tokens' weights, then the tokens of one tile race with separate noise. A token wins with P(tile) times
    P(token | tile), exactly its share of the whole, and the noise needed is one number per tile and position in a tile.

    In a wide vocabulary top_p works by rejection: a winner that it keeps is an exact draw from the renormalized kept
    tokens, and testing one token is cheaper than finding all kept ones. If the winner is dropped, the race is repeated
    with the noise of the next attempt; after `ATTEMPTS` races it is held among the kept tokens alone.

    A choice changes only if a leader is overtaken. If rounding moves the logits by at most d, log-weights of tiles also
    move by at most d (a sum of weights moves no further than its terms), so each of the two races flips with a
    probability of the order of d, in a vocabulary of any size. The inversion of a cumulative sum would flip with the
    sum of the errors of all tokens before the chosen one. A token that a filter keeps or drops because of rounding
    changes only the draws that it wins.
    """

    def __init__(self, seeds: Sequence[int], positions: Sequence[int], weights: Weights, vocab: int) -> None:
        """Draw i is for (seeds[i], positions[i]). `weights` is filled for the rows of each call of `winners`."""
        device = weights.device
        self._weights = weights
        self._keys = draw_keys(_tensor(seeds, device), _tensor(positions, device))
        self._entries = torch.arange(TILE + tiles_of(vocab), device=device).unsqueeze(0)
        self._first = exponential_noise(self._keys, self._entries)

    def winners(
        self, logits: torch.Tensor, filters: Sequence[Filters], draws: range, owners: Sequence[int]
    ) -> list[int | None]:
        """Return the tokens of `draws`: `draws[i]` draws from row `owners[i]` of `logits` `[rows, vocab]`.

        logits and filters as in `Weights.fill`. None if the highest logit of the row is not finite.
        """
        weights = self._weights
        finite = weights.fill(logits, filters)
        tokens = self._run(weights, owners, self._first[draws.start : draws.stop])
        pending = weights.dropped(owners, tokens)
        keys = self._keys[draws.start : draws.stop]
        attempt = 1
        while pending:
            keys = next_keys(keys)
            places = _tensor(pending, keys.device)
            rows = [owners[place] for place in pending]
            if attempt == ATTEMPTS:
                weights.restrict(sorted(set(rows)))
            tokens[places] = self._run(weights, rows, exponential_noise(keys[places], self._entries))
            dropped = weights.dropped(rows, tokens[places]) if attempt < ATTEMPTS else []
            pending = [pending[index] for index in dropped]
            attempt += 1
        return [token if finite[owner] else None for token, owner in zip(tokens.tolist(), owners, strict=True)]

    def _run(self, weights: Weights, rows: Sequence[int], noise: torch.Tensor) -> torch.Tensor:
        """Return the winners `[draws]`, int64; `noise` `[draws, entries]` is for positions in a tile, then tiles."""
        each, tiles = weights.sums.shape
        if each == 1:
            tile = (weights.sums / noise[:, TILE:]).argmax(dim=-1)
            entrants = weights.tiles[0].index_select(0, tile)
        else:
            where = _tensor(rows, noise.device)
            tile = (weights.sums.index_select(0, where) / noise[:, TILE:]).argmax(dim=-1)
            entrants = weights.tiles.view(-1, TILE).index_select(0, where.mul_(tiles).add_(tile))
        return (entrants / noise[:, :TILE]).argmax(dim=-1).add_(tile, alpha=TILE)


def _tensor(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
