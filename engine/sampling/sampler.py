"""Which token comes next, for all rows of an iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.sampling.filters import filtered
from engine.sampling.likeliest import log_totals, most_probable
from engine.sampling.passes import gathered, passes
from engine.sampling.race import Race
from schemas.sampling import SamplingParams

_LOWEST_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row of logits is sampled: for output `position` (from 0), never one of `banned`."""

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of one row, None where the row offers none (not a number, infinite, or everything banned)."""

    token: int | None
    logprobs: Any | None = None


@dataclass(frozen=True, slots=True)
class _Distribution:
    """What is drawn from: a row of the logits under some parameters. Rows with equal ones share the work."""

    source: int
    banned: tuple[int, ...]
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, source: int, row: SamplingRow) -> "_Distribution":
        params = row.params
        if params.temperature == 0:
            return cls(source, row.banned, 0.0)
        return cls(source, row.banned, params.temperature, params.top_k, params.top_p, params.min_p)


_Draws = dict[_Distribution, list[int]]


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], of: Sequence[int] | None = None) -> list[Sampled]:
    """Draw one token for each of `rows`, `rows[i]` from row `of[i]` of `logits` `[n, vocab]` (by default from row i).

    Filters apply in the order temperature, top_k, top_p, min_p. A draw depends on the row's logits, parameters, seed
    and position alone, never on the other rows; rows that draw from the same logits under the same parameters share
    all work that is as wide as the vocabulary. ValueError if `of` does not name one row of `logits` for each row.
    """
    sources = _sources(logits, rows, of)
    greedy: _Draws = {}
    random: _Draws = {}
    for index, (source, row) in enumerate(zip(sources, rows, strict=True)):
        draws = random if row.params.temperature > 0 else greedy
        draws.setdefault(_Distribution.of(source, row), []).append(index)
    tokens = _take_best(logits, greedy) | _draw(logits, random, rows)
    logprobs = _logprobs(logits, tokens, rows, sources)
    return [Sampled(tokens.get(index), logprobs.get(index)) for index in range(len(rows))]


def _sources(logits: torch.Tensor, rows: Sequence[SamplingRow], of: Sequence[int] | None) -> Sequence[int]:
    sources = range(len(logits)) if of is None else of
    if len(sources) != len(rows):
        raise ValueError(f"{len(rows)} rows draw from {len(sources)} rows of logits; each needs one")
    for source in sources:
        if not 0 <= source < len(logits):
            raise ValueError(f"of contains {source}; the rows of logits are 0 to {len(logits) - 1}")
    return sources


def _take_best(logits: torch.Tensor, draws: _Draws) -> dict[int, int]:
    """The token of each greedy row that has one."""
    tokens = {}
    for distributions in passes(list(draws), logits):
        values, best = _maxima(_allowed(logits, distributions))
        for distribution, value, token in zip(distributions, values, best, strict=True):
            if np.isfinite(value):
                tokens.update(dict.fromkeys(draws[distribution], token))
    return tokens


def _maxima(scores: torch.Tensor) -> tuple[list[float], list[int]]:
    """The highest score of each row and the first token that has it; not a number where one is not."""
    if scores.device.type == "cpu":
        # The same as below, twenty times as fast.
        best = scores.numpy().argmax(axis=1)
        return scores.numpy()[np.arange(len(best)), best].tolist(), best.tolist()
    values, tokens = scores.max(dim=-1)
    return values.tolist(), tokens.tolist()


def _draw(logits: torch.Tensor, draws: _Draws, rows: Sequence[SamplingRow]) -> dict[int, int]:
    """The token of each row that is drawn at random and has one."""
    drawn = [index for indices in draws.values() for index in indices]
    if not drawn:
        return {}
    seeds, positions = [rows[index].seed for index in drawn], [rows[index].position for index in drawn]
    race = Race(seeds, positions, logits.shape[1], logits.device)
    usable: list[bool] = []
    for distributions in passes(list(draws), logits):
        sizes = [len(draws[distribution]) for distribution in distributions]
        scores, finite = _scores(logits, distributions)
        race.enter(scores, sizes)
        usable += [good for good, size in zip(finite, sizes, strict=True) for _ in range(size)]
    return {index: token for index, token, good in zip(drawn, race.winners(), usable, strict=True) if good}


def _scores(logits: torch.Tensor, distributions: Sequence[_Distribution]) -> tuple[torch.Tensor, list[bool]]:
    """Log-weights `[distributions, vocab]`, the highest 0, and whether a row has any; else it means nothing."""
    allowed = _allowed(logits, distributions)
    best = allowed.amax(dim=-1, keepdim=True)
    # The maximum is taken off first, so that a low temperature cannot overflow.
    scores = allowed - best
    temperatures = [max(each.temperature, _LOWEST_TEMPERATURE) for each in distributions]
    if any(temperature != 1 for temperature in temperatures):
        scores *= scores.new_tensor([1 / temperature for temperature in temperatures]).unsqueeze(1)
    top_k, top_p, min_p = zip(*((each.top_k, each.top_p, each.min_p) for each in distributions), strict=True)
    return filtered(scores, top_k, top_p, min_p), best.squeeze(1).isfinite().tolist()


def _allowed(logits: torch.Tensor, distributions: Sequence[_Distribution]) -> torch.Tensor:
    """The logits of each distribution as float32, -inf for its banned tokens."""
    scores = gathered(logits, [each.source for each in distributions])
    pairs = [(row, token) for row, each in enumerate(distributions) for token in each.banned]
    if not pairs:
        return scores
    where = tuple(torch.tensor(axis, device=scores.device) for axis in zip(*pairs, strict=True))
    return scores.index_put(where, scores.new_tensor(-torch.inf))


def _logprobs(
    logits: torch.Tensor, tokens: dict[int, int], rows: Sequence[SamplingRow], sources: Sequence[int]
) -> dict[int, Any]:
    """Per row that asks for it `[logprob of the token, [[token id, logprob], ...]]`, likeliest first."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None and index in tokens]
    if not asking:
        return {}
    places = {source: place for place, source in enumerate(dict.fromkeys(sources[index] for index in asking))}
    totals = log_totals(logits, list(places))
    top = most_probable(logits, list(places), max(rows[index].params.logprobs or 0 for index in asking), totals)
    where = torch.tensor([[sources[index], tokens[index]] for index in asking], device=logits.device).T
    found: dict[int, Any] = {}
    for index, own in zip(asking, logits[where[0], where[1]].tolist(), strict=True):
        place = places[sources[index]]
        first = top[place][: rows[index].params.logprobs]
        found[index] = [own - (totals[place] or 0.0), [list(pair) for pair in first]]
    return found
