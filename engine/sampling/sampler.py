"""Which token comes next, for all rows of an iteration in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.sampling.filters import filtered
from engine.sampling.random import exponential_noise
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


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Draw one token per row of `logits` `[rows, vocab]`.

    Filters apply in the order temperature, top_k, top_p, min_p. A draw depends on the row's logits, parameters, seed
    and position alone, never on the other rows. If all rows are greedy, it is one maximum.
    """
    logits = logits.float()
    allowed = _without_banned(logits, rows)
    best, tokens = allowed.max(dim=-1)
    drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if drawn:
        chosen = _draw(allowed if len(drawn) == len(rows) else allowed[drawn], [rows[index] for index in drawn])
        tokens = chosen if len(drawn) == len(rows) else tokens.index_put((_indices(drawn, logits),), chosen)
    usable, plain = torch.stack([best.isfinite().long(), tokens]).tolist()
    logprobs = _logprobs(logits, tokens, rows)
    return [
        Sampled(token, logprobs.get(index)) if usable[index] else Sampled(None) for index, token in enumerate(plain)
    ]


def _indices(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _without_banned(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    pairs = [(index, token) for index, row in enumerate(rows) for token in row.banned]
    if not pairs:
        return logits
    where = _indices([index for index, _ in pairs], logits), _indices([token for _, token in pairs], logits)
    return logits.index_put(where, logits.new_tensor(-torch.inf))


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Exponential race over the filtered distribution: argmax of log(p / noise)."""
    params = [row.params for row in rows]
    temperature = logits.new_tensor([max(p.temperature, _LOWEST_TEMPERATURE) for p in params]).unsqueeze(1)
    # The maximum is taken off first, so that a low temperature cannot overflow.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    scaled = filtered(scaled, [p.top_k for p in params], [p.top_p for p in params], [p.min_p for p in params])
    noise = exponential_noise(
        _indices([row.seed for row in rows], logits), _indices([row.position for row in rows], logits), logits.shape[1]
    )
    return (scaled - noise.log_()).argmax(dim=-1)


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[SamplingRow]) -> dict[int, Any]:
    """Per row that asks for it `[logprob of the token, [[token id, logprob], ...]]`, likeliest first."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asking:
        return {}
    index = _indices(asking, logits)
    all_logprobs = logits[index].log_softmax(dim=-1)
    own = all_logprobs.gather(1, tokens[index].unsqueeze(1)).squeeze(1).tolist()
    counts = [rows[i].params.logprobs or 0 for i in asking]
    top = all_logprobs.topk(min(max(counts), logits.shape[1]), dim=-1)
    likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return {
        row: [logprob, [[token, value] for token, value in zip(ids[:count], values[:count], strict=True)]]
        for row, logprob, count, (ids, values) in zip(asking, own, counts, likeliest, strict=True)
    }
