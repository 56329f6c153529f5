"""Noise that depends only on (seed, position)."""

import math

import torch

from orcastream.engine.sampling.random import draw_keys, exponential_noise, next_keys


def noise(seeds: list[int], positions: list[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    keys = draw_keys(torch.tensor(seeds, device=device), torch.tensor(positions, device=device))
    return exponential_noise(keys, torch.arange(vocab_size, device=device).unsqueeze(0)).cpu()


def test_rows_do_not_depend_on_the_batch(device: torch.device) -> None:
    alone = noise([7], [3], 1000, device)
    batched = noise([1, 7, 2**63 - 1], [3, 3, 0], 1000, device)
    assert torch.equal(batched[1], alone[0])


def test_entries_do_not_depend_on_the_size_of_the_vocabulary(device: torch.device) -> None:
    assert torch.equal(noise([7], [3], 20_000, device)[:, :500], noise([7], [3], 500, device))


def test_known_values(device: torch.device) -> None:
    """A change of the generator would break continuations across versions: it must be deliberate."""
    expected = torch.tensor(KNOWN)
    assert torch.allclose(noise([0, 12345], [0, 6], 4, device), expected, rtol=1e-5)


KNOWN = [[1.2956447, 0.4865996, 0.2212655, 2.0120511], [0.3089932, 0.4701631, 5.5727605, 0.6627635]]


def test_every_seed_and_position_has_its_own_noise(device: torch.device) -> None:
    seeds = [0, 1, 2, 0, 0, 1, 2**40, 2**63 - 1, -1, -2, -1, -(2**63)]
    positions = [0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 1, 0]
    rows = noise(seeds, positions, 4096, device)
    correlation = torch.corrcoef(rows) - torch.eye(len(seeds))
    assert float(correlation.abs().max()) < 5 / math.sqrt(4096)


def test_the_noise_is_exponential(device: torch.device) -> None:
    """Kolmogorov–Smirnov against 1 - exp(-x), over many seeds, and over many positions of one seed."""
    for seeds, positions in ((list(range(500)), [0] * 500), ([11] * 500, list(range(500)))):
        values = noise(seeds, positions, 400, device).flatten().sort().values.double()
        uniform = 1 - (-values).exp()
        steps = torch.arange(1, len(values) + 1, dtype=torch.float64) / len(values)
        assert float((uniform - steps).abs().max()) < 1.95 / math.sqrt(len(values))
    assert bool((values > 0).all())
    assert bool(values.isfinite().all())


def test_columns_are_independent_of_each_other(device: torch.device) -> None:
    rows = noise(list(range(4000)), [5] * 4000, 16, device)
    correlation = torch.corrcoef(rows.T) - torch.eye(16)
    assert float(correlation.abs().max()) < 5 / math.sqrt(4000)


def test_the_second_stream_of_a_draw_differs(device: torch.device) -> None:
    keys = draw_keys(torch.arange(50, device=device), torch.zeros(50, dtype=torch.int64, device=device))
    entries = torch.arange(1000, device=device).unsqueeze(0)
    streams = torch.stack([exponential_noise(each, entries).flatten() for each in (keys, next_keys(keys))]).cpu()
    assert abs(float(torch.corrcoef(streams)[0, 1])) < 5 / math.sqrt(50_000)
