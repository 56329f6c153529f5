"""Timing of work on a device."""

import statistics
import time
from collections.abc import Callable

import torch

_FLUSHED_BYTES = 256 * 2**20
"""Bytes written between two runs to clear the cache on the chip (50 MiB on an H200)."""


def median_s(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Return the median of `repeats` runs after three warm-up runs; on a GPU as one graph, with a cold cache."""
    if device.type != "cuda":
        run()
        return statistics.median(_host_s(run) for _ in range(repeats))
    replay = _captured(run)
    spoiled = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    times = []
    for _ in range(repeats + 3):
        spoiled.zero_()
        times.append(_device_s(replay))
    return statistics.median(times[3:])


def _device_s(run: Callable[[], object]) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _host_s(run: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return the run as one graph, so that only the device's time counts."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
