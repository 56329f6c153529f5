"""The kernel that draws on a GPU draws the same tokens as the sampler on a CPU; without a GPU it is interpreted."""

import json
import math
import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from orcastream.engine.sampling import drawing, passes, race, sampler, weights
from orcastream.engine.sampling.drawing import Draw, compile_draws, draw_from, draw_on_device, tokens_of
from orcastream.engine.sampling.filters import DrawParams, Filters
from orcastream.engine.sampling.picked import Picked
from orcastream.engine.sampling.sampler import SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vocabularies of hundreds of tokens be as wide as others of a hundred thousand, as the interpreter is slow."""
    for module in (drawing, race, weights):
        monkeypatch.setattr(module, "TILE", 16)
    for module in (drawing, passes, weights):
        monkeypatch.setattr(module, "NARROW", 200)


def drawn(logits: torch.Tensor, rows: list[SamplingRow], of: list[int], device: torch.device) -> list[int | None]:
    """Return the tokens that the kernel draws."""
    draws = [
        Draw(source, row.position, DrawParams.of(row.params, row.seed)) for source, row in zip(of, rows, strict=True)
    ]
    return tokens_of(draw_on_device(logits.to(device), draws))


def expected(logits: torch.Tensor, rows: list[SamplingRow], of: list[int]) -> list[int | None]:
    """Return the tokens that the sampler draws on a CPU."""
    return [each.token for each in sample(logits, rows, of)]


def any_params(choose: random.Random) -> SamplingParams:
    """Return parameters of each kind, with limits that keep one token, some, or all."""
    return SamplingParams(
        temperature=choose.choice([0, 1e-7, 0.5, 1, 1.7]),
        top_k=choose.choice([0, 0, 1, 5, 40, 300, 10**6]),
        top_p=choose.choice([1, 1, 0.999, 0.9, 0.5, 0.1, 1e-9]),
        min_p=choose.choice([0, 0, 1e-4, 0.1, 1]),
    )


def any_logits(choose: random.Random, vocab: int) -> torch.Tensor:
    """Return rows of any spread; some have many equal scores, many that cannot be drawn, or one that is not finite."""
    generator = torch.Generator().manual_seed(choose.randrange(10**9))
    logits = torch.randn(4, vocab, generator=generator) * choose.choice([0, 1e-3, 0.1, 1, 4, 30, 1e4])
    if choose.random() < 0.4:
        logits = logits.bfloat16()
    if choose.random() < 0.3:
        logits[torch.rand(4, vocab, generator=generator) < 0.9] = -torch.inf
    if choose.random() < 0.3:
        logits[0, choose.randrange(vocab)] = choose.choice([math.nan, math.inf])
    return logits


@pytest.mark.parametrize("vocab", [1, 200, 201, 300])
def test_the_kernel_draws_the_tokens_of_the_sampler(vocab: int, triton_device: torch.device) -> None:
    choose = random.Random(vocab)
    for _ in range(3):
        logits = any_logits(choose, vocab)
        seeds = [choose.randrange(-(2**63), 2**63) for _ in range(5)]
        rows = [SamplingRow(any_params(choose), seed, choose.randrange(5000)) for seed in seeds]
        of = [choose.randrange(len(logits)) for _ in rows]
        assert drawn(logits, rows, of, triton_device) == expected(logits, rows, of)


@pytest.mark.parametrize("top_p", [0.35, 0.85])
def test_rejected_draws_are_repeated_and_at_last_restricted(top_p: float, triton_device: torch.device) -> None:
    """Of ten equal tokens the first four or nine are kept: four attempts miss in a seventh of draws, or hardly ever."""
    logits = torch.full((1, 300), -torch.inf)
    logits[0, 40:50] = 0
    rows = [SamplingRow(SamplingParams(temperature=1, top_p=top_p), seed, 0) for seed in range(25)]
    of = [0] * len(rows)
    found = drawn(logits, rows, of, triton_device)
    assert found == expected(logits, rows, of)
    assert set(found) == set(range(40, 44 if top_p < 0.5 else 49))


def test_of_equal_scores_the_first_are_kept(triton_device: torch.device) -> None:
    logits = torch.zeros(1, 300)
    logits[0, 150:] = 1
    params = [SamplingParams(temperature=1, top_k=3), SamplingParams(temperature=1, top_k=3, top_p=0.5)]
    rows = [SamplingRow(each, seed, 0) for each in params for seed in range(9)]
    found = drawn(logits, rows, [0] * len(rows), triton_device)
    assert found == expected(logits, rows, [0] * len(rows))
    assert set(found[:9]) <= {150, 151, 152}
    assert set(found[9:]) == {150, 151}


def test_logits_of_any_layout(triton_device: torch.device) -> None:
    logits = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)).T[::2]
    rows = [SamplingRow(SamplingParams(temperature=1), seed, 0) for seed in range(3)]
    assert drawn(logits, rows, [2, 0, 1], triton_device) == expected(logits, rows, [2, 0, 1])


@pytest.mark.parametrize("vocab", [202, 208])
def test_no_draw_waits_for_a_compiler(vocab: int, triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles a kernel for each of these properties of its arguments, which takes seconds."""
    met: set[tuple[bool, ...]] = set()

    def noted(logits: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        met.add((logits.data_ptr() % 16 == 0, logits.stride(0) % 16 == 0, logits.shape[1] % 16 == 0))
        return draw_from(logits, *more)

    monkeypatch.setattr(drawing, "draw_from", noted)
    monkeypatch.setattr(sampler, "draws_on", lambda device: True)
    compile_draws(vocab, [torch.float32], triton_device)
    compiled = met.copy()
    logits = torch.zeros(3, vocab, device=triton_device)
    for first in range(3):
        sample(logits, [SamplingRow(SamplingParams(temperature=1), 0, 0)], [first])
    assert met == compiled


def test_a_token_that_no_score_offers_is_a_token_nevertheless(triton_device: torch.device) -> None:
    """The next iteration reads it before the host knows that the row offers none."""
    logits = torch.full((3, 300), torch.nan)
    logits[1], logits[2, :299] = -torch.inf, 0
    picked = Picked(logits.to(triton_device), [Draw(row, 0, DrawParams.under(Filters(), 0)) for row in range(3)])
    assert picked.wait([0, 1, 2]) == [None, None, None]
    assert all(0 <= token < 300 for token in picked.tokens.tolist())


def test_the_kernel_compiles_for_hopper() -> None:
    """Without a GPU: no registers are spilled, and rows are read sixteen bytes at a time."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.engine.sampling.compile_draw"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["dtype"] for each in found} == {"bf16", "fp32"}
    for each in found:
        assert each["stack"] == 0, each
        assert each["registers"] <= 128, each  # of 65,536 for 512 threads
