"""Recognizes how a mixture of experts chooses and weights them, by what its router computes on random rows."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from orcastream.engine.model.decoder_model import Router
from orcastream.engine.model.passes.base import plain, random_inputs
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.native.linear import PackedLinear
from orcastream.engine.native.mixture import SIGMOID, SOFTMAX

_ROWS = 64
"""With which a router is compared."""

_FAR = 10
"""Factor for half of these: limits of scores are hardly seen where these are small."""

_LEAST_SPREAD = 1e-6
"""Of scores that are not all equal."""

_LEAST_SUM = 1e-20
"""Of weights that are normalized, where a router does not say otherwise."""

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest relative error of a weight."""


class Observed(NamedTuple):
    """What a mixture of experts computes before these."""

    rows: torch.Tensor
    """`[rows, hidden]`"""
    scores: torch.Tensor
    """`[rows, experts]`"""
    chosen: torch.Tensor
    """`[rows, choices]`"""
    weights: torch.Tensor
    """`[rows, choices]`"""


class _Way(NamedTuple):
    scoring: int
    correction: torch.Tensor | None
    groups: tuple[int, int]
    normalizes: bool
    factor: float


class _Reached(Exception):
    """The experts are called."""


def recognize_router(mlp: Any, router: Any, dtype: torch.dtype) -> tuple[Router[PackedLinear], Observed]:
    """Return how the router of `mlp` chooses for rows in `dtype`, and what it was recognized by.

    Raises OtherKind for a router that computes anything else than a Router can.
    """
    name = type(router).__name__
    weight, bias, correction = _tensors(mlp, router)
    observed = observe(mlp, router, _telling_rows(weight, dtype))
    in_float32 = _in_float32(name, observed, weight, bias)
    way = _way(name, mlp, router, observed, correction)
    packed = weight.float() if in_float32 and not _fits(weight, dtype) else weight.to(dtype)
    found = Router(
        scores=PackedLinear.pack(packed, bias),
        in_float32=in_float32,
        scoring=way.scoring,
        correction=way.correction,
        choices=observed.chosen.shape[-1],
        groups=way.groups[0],
        chosen_groups=way.groups[1],
        normalizes=way.normalizes,
        least_sum=_least_sum(router),
        factor=way.factor,
    )
    return found, observed


def observe(mlp: Any, router: Any, rows: torch.Tensor) -> Observed:
    """Compute `mlp` for `rows`, `[rows, hidden]`, up to its experts. Raises OtherKind if it does not call these."""
    scores, given = [], []

    def stop(_: Any, arguments: tuple[Any, ...]) -> None:
        given.append(arguments)
        raise _Reached

    handles = [
        router.register_forward_hook(lambda _, __, found: scores.append(found)),
        mlp.experts.register_forward_pre_hook(stop),
    ]
    try:
        with torch.inference_mode():
            mlp(rows.unsqueeze(0))
    except _Reached:
        pass
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise OtherKind(f"{type(mlp).__name__} takes something else: {error!r}") from error
    finally:
        for handle in handles:
            handle.remove()
    name = type(router).__name__
    expect(len(scores) == 1 and len(given) == 1 and len(given[0]) == 3, f"{type(mlp).__name__} has other steps")
    expect(isinstance(scores[0], tuple) and len(scores[0]) == 3, f"{name} returns something else")
    own, chosen, weights = given[0]
    expect(torch.equal(own.reshape(rows.shape), rows), f"{type(mlp).__name__} gives its experts other rows")
    return Observed(rows, scores[0][0].reshape(len(rows), -1), chosen.reshape(len(rows), -1), weights)


def _tensors(mlp: Any, router: Any) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return weight, bias, and what may be the correction, in float32."""
    expect(plain(router), f"{type(router).__name__} has hooks")
    own = {**dict(router.named_parameters()), **dict(router.named_buffers())}
    weight, bias = own.pop("weight", None), own.pop("bias", None)
    others = [*own.values(), *mlp.parameters(recurse=False), *mlp.buffers(recurse=False)]
    if weight is None or weight.dim() != 2 or len(others) > 1 or any(each.numel() != len(weight) for each in others):
        raise OtherKind(f"{type(router).__name__} has other weights")
    correction = others[0].detach().float().reshape(-1).clone() if others else None
    return weight.detach(), None if bias is None else bias.detach(), correction


def _telling_rows(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return random rows, of which half have scores that differ, but of which none outweighs all others."""
    ((rows,),) = random_inputs(weight.shape[1], dtype, [_ROWS])
    spread = functional.linear(rows.float(), weight.float()).std(-1, correction=0).mean()
    telling: torch.Tensor = rows / spread.clamp(min=_LEAST_SPREAD).to(dtype)
    telling[_ROWS // 2 :] *= _FAR
    return telling


def _in_float32(name: str, observed: Observed, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether scores have more digits than rows; they are products of rows and weight in either case."""
    rows, scores = observed.rows, observed.scores
    if weight.dtype is rows.dtype and torch.equal(functional.linear(rows, weight, bias).float(), scores.float()):
        return False
    expected = functional.linear(rows.float(), weight.float(), None if bias is None else bias.float())
    is_equal = scores.dtype is torch.float32 and torch.allclose(scores, expected, rtol=1e-5, atol=1e-5)
    expect(is_equal, f"{name} computes other scores")
    return rows.dtype is not torch.float32


def _fits(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether products with the weight in `dtype` are the same."""
    return torch.equal(weight.to(dtype).float(), weight.float())


def _way(name: str, mlp: Any, router: Any, observed: Observed, correction: torch.Tensor | None) -> _Way:
    """Return the way of choosing and weighting that comes closest to the observed one."""
    weights = observed.weights.float()
    errors = {
        index: (way, float((weights / expected - 1).abs().max()))
        for index, (way, expected) in enumerate(_ways(mlp, router, observed, correction))
    }
    expect(bool(errors), f"{name} chooses otherwise")
    way, error = min(errors.values(), key=lambda each: each[1])
    expect(error <= _TOLERANCE[observed.weights.dtype], f"{name} weighs otherwise")
    return way


def _ways(
    mlp: Any, router: Any, observed: Observed, correction: torch.Tensor | None
) -> Iterator[tuple[_Way, torch.Tensor]]:
    """Yield ways that choose as was observed, with the weights that they give."""
    scores, chosen = observed.scores.float(), observed.chosen
    numbers = [*vars(router).values(), *vars(mlp).values()]
    factors = [1.0, *(float(each) for each in numbers if type(each) in (int, float) and each not in (0, 1))]
    corrections = [correction, None] if correction is not None else [None]
    for scoring, added, groups in product((SOFTMAX, SIGMOID), corrections, _groups(mlp, router, observed)):
        chances = scores.softmax(-1) if scoring == SOFTMAX else scores.sigmoid()
        keys = _within_groups(chances if added is None else chances + added, *groups)
        highest = keys.topk(chosen.shape[-1]).values
        if not torch.equal(keys.gather(1, chosen).sort(-1, descending=True).values, highest):
            continue
        plainly = chances.gather(1, chosen)
        for normalizes, factor in product((False, True), factors):
            total = plainly.sum(-1, keepdim=True).clamp(min=_least_sum(router))
            expected = plainly / total if normalizes else plainly
            yield _Way(scoring, added, groups, normalizes, factor), expected * factor


def _least_sum(router: Any) -> float:
    return float(getattr(router, "norm_min", _LEAST_SUM))


def _groups(mlp: Any, router: Any, observed: Observed) -> list[tuple[int, int]]:
    """Return possible numbers of groups, and of those that are chosen."""
    num_experts, choices = observed.scores.shape[-1], observed.chosen.shape[-1]
    found = [(1, 1)]
    for owner, name in product((router, mlp), ("num_group", "n_group")):
        groups, chosen = getattr(owner, name, None) or 1, getattr(owner, "topk_group", None) or 1
        size = num_experts // groups
        if groups > 1 and num_experts == groups * size and size > 1 and chosen <= groups and chosen * size >= choices:
            found.insert(0, (groups, chosen))
    return found


def _within_groups(keys: torch.Tensor, groups: int, chosen: int) -> torch.Tensor:
    """Return `keys`, `[rows, experts]`, without those of groups that are not chosen."""
    if groups == 1:
        return keys
    apart = keys.view(len(keys), groups, -1)
    best = apart.topk(2, dim=-1).values.sum(-1).topk(chosen).indices
    kept = torch.zeros(len(keys), groups, dtype=torch.bool).scatter_(1, best, True)
    return apart.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
