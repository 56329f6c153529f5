"""The card's limits, as measured on it."""

from dataclasses import dataclass

import torch

from orcastream.bench.gpu.clock import median_s


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second read and written by a copy, and operations per second of a bfloat16 matrix product."""

    bytes_per_s: float
    flop_per_s: float


def measure_ceilings(device: torch.device, *, copied_bytes: int = 2**32, size: int = 8192) -> Ceilings:
    """Measure a copy of `copied_bytes`, and a product of random square matrices."""
    return Ceilings(copied_bytes / _copy_s(device, copied_bytes), 2 * size**3 / _product_s(device, size))


def _copy_s(device: torch.device, copied_bytes: int) -> float:
    source = torch.randn(copied_bytes // 8, device=device)
    target = torch.empty_like(source)
    # A kernel: the driver's own copy, as a node of a graph, reaches two thirds of the bandwidth on an H200.
    return median_s(lambda: torch.neg(source, out=target), device)


def _product_s(device: torch.device, size: int) -> float:
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    return median_s(lambda: torch.mm(left, right, out=product), device)
