"""Measure the cost of sampling per iteration: `python -m orcastream.bench.sampling`. Uses one torch thread.

Each setting repeatedly samples the same rows of random logits. Peaked logits have a few tokens with most of the
probability, flat ones are nearly uniform, coarse ones are flat and rounded to bfloat16, with thousands of equal scores.
Times are the thread's CPU time, so that other work on the machine counts only as far as it slows caches.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from orcastream.bench.figures.spread import percentile
from orcastream.engine.sampling.sampler import SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams

_MIXED = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_k=40),
    SamplingParams(top_p=0.9),
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.05),
)
_SETTINGS: tuple[tuple[str, str, tuple[SamplingParams, ...]], ...] = (
    ("greedy", "peaked", (SamplingParams(temperature=0),)),
    ("temperature 0.7", "peaked", (SamplingParams(temperature=0.7),)),
    ("top_k 40", "peaked", (SamplingParams(top_k=40),)),
    ("top_p 0.9", "peaked", (SamplingParams(top_p=0.9),)),
    ("top_p 0.9", "wide", (SamplingParams(top_p=0.9),)),
    ("top_p 0.9", "flat", (SamplingParams(top_p=0.9),)),
    ("top_p 0.95", "flat", (SamplingParams(top_p=0.95),)),
    ("top_p 0.95", "coarse", (SamplingParams(top_p=0.95),)),
    ("min_p 0.05", "peaked", (SamplingParams(min_p=0.05),)),
    ("five settings in turn", "peaked", _MIXED),
    ("logprobs 5", "peaked", (SamplingParams(logprobs=5),)),
)


def logits_of(shape: str, rows: int, vocab: int) -> torch.Tensor:
    """Return random logits `[rows, vocab]` of one of the shapes above."""
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))
    if shape == "peaked":
        noise[:, ::5000] += 12
        return noise
    if shape == "wide":
        return noise * 2.5
    return noise * 0.1 if shape == "flat" else (noise * 0.1).bfloat16().float()


def durations_ms(logits: torch.Tensor, rows: Sequence[SamplingRow], repeats: int) -> list[float]:
    """Return the sorted CPU milliseconds of `repeats` calls, after two uncounted ones."""
    taken = []
    with torch.inference_mode():
        for _ in range(repeats + 2):
            begun = time.thread_time()
            sample(logits, rows)
            taken.append((time.thread_time() - begun) * 1e3)
    return sorted(taken[2:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of medians and quartiles; return the exit status."""
    parser = argparse.ArgumentParser(prog="orcastream.bench.sampling", description=__doc__)
    parser.add_argument("--rows", type=int, default=16, help="rows of an iteration (%(default)s)")
    parser.add_argument("--vocab", type=int, default=151_936, help="size of the vocabulary (%(default)s)")
    parser.add_argument("--repeats", type=int, default=50, help="calls per setting (%(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| setting | logits | median | quartiles | fastest |\n|---|---|---|---|---|")
    for name, shape, params in _SETTINGS:
        rows = [SamplingRow(params[index % len(params)], index, 5) for index in range(options.rows)]
        taken = durations_ms(logits_of(shape, options.rows, options.vocab), rows, options.repeats)
        median, low, high = (percentile(taken, share) for share in (0.5, 0.25, 0.75))
        print(f"| {name} | {shape} | {median:.1f} ms | {low:.1f} – {high:.1f} ms | {taken[0]:.1f} ms |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
