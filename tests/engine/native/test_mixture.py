"""Mixtures of experts of any shape are computed as they are defined."""

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from orcastream.engine.model.compiled_mixture import CompiledMixture
from orcastream.engine.model.decoder_model import GatedMLP, Mixture, Router, SharedExpert
from orcastream.engine.native.gate import CLAMPED_SWISH, Gate, apply_gate
from orcastream.engine.native.library import why_unavailable
from orcastream.engine.native.linear import PackedLinear
from orcastream.engine.native.mixture import SIGMOID, SOFTMAX

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason="no compiled operators: python -m orcastream.engine.native.build"
)


def errors_of(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the relative error of each row."""
    return (found - expected).float().norm(dim=1) / expected.float().norm(dim=1)


def rows(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("alpha", [1.0, 1.702])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_clamped_gate_equals_its_definition(dtype: torch.dtype, alpha: float) -> None:
    """For any width; a NaN stays one, and disturbs no other."""
    for width, count in itertools.product((1, 16, 45, 96), (1, 3)):
        x = (rows(count, 2 * width, dtype) * 10).index_fill(1, torch.tensor([width - 1]), torch.nan)
        gate, up = x.float()[:, :width].clamp(max=7), x.float()[:, width:].clamp(-7, 7)
        expected = gate * torch.sigmoid(alpha * gate) * (up + 1)
        found = apply_gate(x, Gate(CLAMPED_SWISH, alpha, 7.0)).float()
        rounding = 1e-5 if dtype is torch.float32 else 1e-2
        torch.testing.assert_close(found, expected, rtol=rounding, atol=1e-5, equal_nan=True)


def random_mixture(seed: int, dtype: torch.dtype) -> Mixture[PackedLinear]:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    groups, size = choose.choice([(1, 7), (1, 33), (4, 4), (3, 2), (2, 40)])
    chosen_groups = choose.randint(1, groups)
    hidden, inner = choose.choice([(32, 32), (40, 24), (96, 64)])
    of: Callable[[torch.Tensor], PackedLinear] = choose.choice([PackedLinear.pack, PackedLinear.quantize])

    def linears(n: int, k: int, count: int = groups * size) -> tuple[PackedLinear, ...]:
        return tuple(of((torch.randn(n, k) / k**0.5).to(dtype)) for _ in range(count))

    in_float32 = choose.random() < 0.5
    scores = (torch.randn(groups * size, hidden) / hidden**0.5).to(torch.float32 if in_float32 else dtype)
    router = Router(
        scores=PackedLinear.pack(scores, torch.randn(groups * size) if choose.random() < 0.5 else None),
        in_float32=in_float32,
        scoring=choose.choice([SOFTMAX, SIGMOID]),
        correction=torch.rand(groups * size) if choose.random() < 0.5 else None,
        choices=choose.randint(1, min(chosen_groups * size, 6)),
        groups=groups,
        chosen_groups=chosen_groups,
        normalizes=choose.random() < 0.5,
        least_sum=1e-20,
        factor=choose.choice([1.0, 2.5]),
    )
    shared = None
    if choose.random() < 0.5:
        weight = linears(1, hidden, 1)[0] if choose.random() < 0.5 else None
        shared = SharedExpert(GatedMLP(linears(128, hidden, 1)[0], linears(hidden, 64, 1)[0]), 0, weight)
    gate = choose.choice([Gate(0), Gate(1), Gate(CLAMPED_SWISH, 1.7, 2.0)])
    return Mixture(router, linears(2 * inner, hidden), linears(hidden, inner), gate, shared)


def first_highest(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of the highest of each row, of equal ones the first."""
    return keys.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def by_definition(given: Mixture[PackedLinear], x: torch.Tensor) -> torch.Tensor:
    """Compute the mixture row by row, expert by expert."""
    router = given.router
    wide = router.in_float32 and router.scores.dtype is torch.float32
    scores = router.scores(x.float() if wide else x, torch.float32 if router.in_float32 else x.dtype).float()
    chances = scores.softmax(-1) if router.scoring == SOFTMAX else scores.sigmoid()
    keys = chances if router.correction is None else chances + router.correction
    if router.groups > 1:
        apart = keys.view(len(keys), router.groups, -1)
        kept = first_highest(apart.topk(2).values.sum(-1), router.chosen_groups)
        chosen = torch.zeros(apart.shape[:2]).scatter_(1, kept, 1).bool()
        keys = apart.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(1)
    places = first_highest(keys, router.choices)
    weights = chances.gather(1, places)
    if router.normalizes:
        weights = weights / weights.sum(-1, keepdim=True)
    y = torch.zeros(len(x), given.down[0].n)
    for row, choice in itertools.product(range(len(x)), range(router.choices)):
        expert = int(places[row, choice])
        inner = apply_gate(given.gate_up[expert](x[row : row + 1]), given.gate)
        y[row] += (weights[row, choice] * router.factor * given.down[expert](inner).float())[0]
    y = y.to(x.dtype)
    if given.shared is None:
        return y
    own = given.shared.mlp.down(apply_gate(given.shared.mlp.gate_up(x), Gate(given.shared.activation)))
    return y + (own if given.shared.weight is None else given.shared.weight(x).sigmoid() * own)


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(24))
def test_any_mixture_is_computed_as_defined(seed: int, dtype: torch.dtype) -> None:
    """Of any shape, by any number of threads, and undisturbed by rows with NaN, which remain NaN."""
    given, choose = random_mixture(seed, dtype), random.Random(seed)
    compiled = CompiledMixture(given, dtype)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, choose.randint(3, 64)):
            torch.set_num_threads(choose.randint(1, 3))
            x = rows(count, given.router.scores.k, dtype)
            expected = by_definition(given, x)
            spoiled = torch.zeros(count, dtype=torch.bool)
            spoiled[choose.randrange(count)] = count > 1
            x[spoiled] = torch.nan
            found = compiled(x)
            assert torch.equal(found.isnan().all(dim=1), spoiled)
            tolerance = 0.02 if dtype is torch.bfloat16 or given.down[0].dtype is torch.int8 else 1e-5
            assert (errors_of(found, expected)[~spoiled] < tolerance).all()
    finally:
        torch.set_num_threads(threads)


def test_of_equal_scores_the_first_are_chosen() -> None:
    weights = [torch.eye(32) * (1 + expert) for expert in range(20)]
    up = [PackedLinear.pack(torch.cat([torch.eye(32), each])) for each in weights]
    router = Router(PackedLinear.pack(torch.zeros(20, 32)), False, SIGMOID, None, 3, 1, 1, False, 1e-20, 1.0)
    down = tuple(PackedLinear.pack(torch.eye(32)) for _ in weights)
    given = Mixture(router, tuple(up), down, Gate(0), None)
    x = rows(5, 32, torch.float32)
    expected = nn.functional.silu(x) * x * (1 + 2 + 3) / 2
    torch.testing.assert_close(CompiledMixture(given, x.dtype)(x), expected)
