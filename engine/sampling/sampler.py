"""The sampler: chooses the next token for all rows of an iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch

from orcastream.engine.batch.transfer import copied
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.native.maxima import has_maxima, row_maxima
from orcastream.engine.sampling.drawing import Draw, draw_on_device, draws_on, tokens_of
from orcastream.engine.sampling.filters import DrawParams, Filters
from orcastream.engine.sampling.likeliest import ranked
from orcastream.engine.sampling.logit_changes import LogitChanges, change_logits
from orcastream.engine.sampling.masks import allowed
from orcastream.engine.sampling.passes import gathered, one_by_one, passes, rows_at_once
from orcastream.engine.sampling.picked import maxima
from orcastream.engine.sampling.race import Race
from orcastream.engine.sampling.weights import Weights
from orcastream.schemas.sampling import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """How one row of logits is sampled: for output `position` (from 0), never a token of `banned`. Never changed.

    `changes` are applied to the logits first; they have seen the output before that position. `mask` is the index of
    the mask of allowed tokens; None: all are allowed.
    """

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...] = ()
    changes: LogitChanges | None = None
    mask: int | None = None


@dataclass(slots=True)
class Sampled:
    """The token of one row, or None if the row offers none (NaN, infinite, or no token allowed).

    Never changed, like SamplingRow.
    """

    token: int | None
    logprobs: Any | None = None


class _Distribution(NamedTuple):
    """A row of the logits under some filters (None: take its best). Rows with equal distributions share work."""

    source: int
    banned: tuple[int, ...]
    changes: LogitChanges | None
    mask: int | None
    filters: Filters | None

    @classmethod
    def of(cls, source: int, row: SamplingRow) -> "_Distribution":
        return cls(source, row.banned, row.changes, row.mask, Filters.of(row.params))


_Draws = dict[_Distribution, list[int]]


def sample(
    logits: torch.Tensor,
    rows: Sequence[SamplingRow],
    of: Sequence[int] | None = None,
    masks: torch.Tensor | None = None,
) -> list[Sampled]:
    """Draw one token for each of `rows`, `rows[i]` from row `of[i]` of `logits` `[n, vocab]` (by default from row i).

    `masks` `[m, mask_bytes]` uint8, on the device of the logits, are those that rows refer to; filters see only allowed
    tokens. Log probabilities are the model's own, before any change.
    Filters apply in the order temperature, top_k, top_p, min_p. A draw depends only on the row's logits, parameters,
    seed and position, never on other rows; rows that draw from the same logits under the same parameters share
    all work that is as wide as the vocabulary. Raises ValueError if `of` does not name one row of `logits` per row.
    """
    sources = _sources(logits, rows, of)
    plain: list[int] = []
    greedy: _Draws = {}
    random: _Draws = {}
    for index, (source, row) in enumerate(zip(sources, rows, strict=True)):
        if row.params.temperature > 0:
            random.setdefault(_Distribution.of(source, row), []).append(index)
        elif row.banned or row.changes is not None or row.mask is not None:
            greedy.setdefault(_Distribution.of(source, row), []).append(index)
        else:
            plain.append(index)
    best = take_best(logits, [sources[index] for index in plain])
    tokens = {index: token for index, token in zip(plain, best, strict=True) if token is not None}
    tokens |= _take_best(logits, greedy, masks) | _draw(logits, random, rows, masks)
    logprobs = _logprobs(logits, tokens, rows, sources)
    return [Sampled(tokens.get(index), logprobs.get(index)) for index in range(len(rows))]


def _sources(logits: torch.Tensor, rows: Sequence[SamplingRow], of: Sequence[int] | None) -> Sequence[int]:
    sources = range(len(logits)) if of is None else of
    if len(sources) != len(rows):
        raise ValueError(f"{len(rows)} rows draw from {len(sources)} rows of logits; each needs one")
    count = len(logits)
    for source in sources:
        if not 0 <= source < count:
            raise ValueError(f"of contains {source}; the rows of logits are 0 to {count - 1}")
    return sources


def take_best(logits: torch.Tensor, sources: Sequence[int]) -> list[int | None]:
    """Return the likeliest token of each of those rows of `logits`, the first on a tie; None if the row offers none.

    This is the result of `sample` for rows of temperature 0 that ask for nothing else.
    """
    return best_tokens(*_highest(logits, sources))


def best_tokens(values: Sequence[float], tokens: Sequence[int]) -> list[int | None]:
    """Return the tokens that have these highest scores of rows; None for a row that offers none."""
    if isfinite(sum(values)):
        return list(tokens)
    # One is not finite, or the sum of finite ones overflows.
    return [token if isfinite(value) else None for value, token in zip(values, tokens, strict=True)]


def _take_best(logits: torch.Tensor, draws: _Draws, masks: torch.Tensor | None) -> dict[int, int]:
    """Return the token of each greedy row that has one."""
    tokens = {}
    for distributions in passes(list(draws), logits):
        values, best = _maxima(_allowed(logits, distributions, masks))
        for distribution, value, token in zip(distributions, values, best, strict=True):
            if isfinite(value):
                tokens.update(dict.fromkeys(draws[distribution], token))
    return tokens


def _highest(logits: torch.Tensor, sources: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return the highest score of each of those rows and the first token that has it; NaN if any of its scores is."""
    if one_by_one(logits) and has_maxima(logits) and why_unavailable() is None:
        return row_maxima(logits, sources)
    values: list[float] = []
    best: list[int] = []
    for some in passes(sources, logits):
        more_values, more_best = _maxima(gathered(logits, some))
        values += more_values
        best += more_best
    return values, best


def _maxima(scores: torch.Tensor) -> tuple[list[float], list[int]]:
    """Return the same for all rows of float32 scores."""
    if scores.device.type == "cpu":
        # The same result as below, twenty times as fast.
        best = scores.numpy().argmax(axis=1)
        return scores.numpy()[np.arange(len(best)), best].tolist(), best.tolist()
    best, ids = maxima(scores).tolist()
    return best, list(map(int, ids))


def _draw(
    logits: torch.Tensor, draws: _Draws, rows: Sequence[SamplingRow], masks: torch.Tensor | None
) -> dict[int, int]:
    """Return the token of each randomly drawn row that has one."""
    drawn = [index for indices in draws.values() for index in indices]
    if not drawn:
        return {}
    seeds, positions = [rows[index].seed for index in drawn], [rows[index].position for index in drawn]
    race = None
    if not draws_on(logits.device):
        weights = Weights(min(len(draws), rows_at_once(logits)), logits.shape[1], logits.device)
        race = Race(seeds, positions, weights, logits.shape[1])
    tokens: dict[int, int] = {}
    begin = 0
    for distributions in passes(list(draws), logits):
        scores = _allowed(logits, distributions, masks)
        filters = [each.filters or Filters() for each in distributions]
        owners = [place for place, each in enumerate(distributions) for _ in draws[each]]
        numbers = range(begin, begin + len(owners))
        begin = numbers.stop
        if race is None:
            some = [
                Draw(owner, positions[n], DrawParams.under(filters[owner], seeds[n]))
                for n, owner in zip(numbers, owners, strict=True)
            ]
            winners = tokens_of(draw_on_device(scores, some))
        else:
            winners = race.winners(scores, filters, numbers, owners)
        tokens |= {drawn[n]: token for n, token in zip(numbers, winners, strict=True) if token is not None}
    return tokens


def _allowed(logits: torch.Tensor, distributions: Sequence[_Distribution], masks: torch.Tensor | None) -> torch.Tensor:
    """Return the logits of each distribution as float32, with its changes, and -inf for banned or masked tokens."""
    scores = gathered(logits, [each.source for each in distributions])
    if any(each.changes is not None for each in distributions):
        scores = scores.clone(memory_format=torch.contiguous_format)
        change_logits(scores, [each.changes for each in distributions])
    if masks is not None:
        scores = _masked(scores, [each.mask for each in distributions], masks)
    pairs = [(row, token) for row, each in enumerate(distributions) for token in each.banned]
    if not pairs:
        return scores
    places, tokens = copied(pairs, scores.device).T
    return scores.index_put((places, tokens), scores.new_full((), -torch.inf))


def _masked(scores: torch.Tensor, chosen: Sequence[int | None], masks: torch.Tensor) -> torch.Tensor:
    """Return `scores` with mask `chosen[i]` applied to row i."""
    rows = [row for row, mask in enumerate(chosen) if mask is not None]
    if not rows:
        return scores
    may_come = allowed(masks[copied([mask for mask in chosen if mask is not None], masks.device)], scores.shape[1])
    if len(rows) == len(chosen):
        return scores.masked_fill(~may_come, -torch.inf)
    where = copied(rows, scores.device)
    return scores.index_copy(0, where, scores[where].masked_fill_(~may_come, -torch.inf))


def _logprobs(
    logits: torch.Tensor, tokens: dict[int, int], rows: Sequence[SamplingRow], sources: Sequence[int]
) -> dict[int, Any]:
    """Return `[logprob of the token, [[token id, logprob], ...]]`, likeliest first, for each row that asks for it."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None and index in tokens]
    if not asking:
        return {}
    places = {source: place for place, source in enumerate(dict.fromkeys(sources[index] for index in asking))}
    ranks = ranked(logits, list(places), max(rows[index].params.logprobs or 0 for index in asking))
    places_of, tokens_of_them = copied([[sources[index], tokens[index]] for index in asking], logits.device).T
    found: dict[int, Any] = {}
    for index, own in zip(asking, logits[places_of, tokens_of_them].tolist(), strict=True):
        total, first = ranks[places[sources[index]]]
        found[index] = [own - total, [list(pair) for pair in first[: rows[index].params.logprobs]]]
    return found
