"""Measure the scheduler's cost per iteration: `python -m orcastream.bench.scheduler [--plot docs/scheduler.svg]`.

Measures only `select()`, with a real KV cache without tensors: a full batch decodes while the given number of prompts
wait. No model runs. The contexts of the running requests are spread evenly, so that as many need a block in each
iteration as in a server (one in `block_size`).
"""

import argparse
import gc
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from orcastream.bench.figures.svg import STYLE, write_svg
from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup
from orcastream.engine.request import Request
from orcastream.engine.schedule.make import make_scheduler
from orcastream.engine.schedule.policies import POLICIES
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.sampling import SamplingParams

RUNNING = (16, 32, 64, 128, 256)
WAITING = (0, 256, 1024, 4096)
_BLOCK_SIZE = 16
_PROMPT = 64


class Cost(NamedTuple):
    """Cost of `select()` in microseconds of the thread's own time, which a busy machine affects little."""

    policy: str
    running: int
    waiting: int
    median_us: float
    p99_us: float


def measure(policy: str, running: int, waiting: int, iterations: int) -> Cost:
    """Measure `iterations` calls with a full batch of `running`."""
    scheduler = _filled(policy, running, iterations)
    _run_until_all_decode(scheduler, running)
    for index in range(waiting):
        scheduler.add(_request(f"waiting-{index}", index, iterations))
    gc.collect()
    times_us = []
    for _ in range(iterations):
        started_ns = time.thread_time_ns()
        plan = scheduler.select()
        times_us.append((time.thread_time_ns() - started_ns) / 1000)
        assert len(plan) == running
        _compute(plan.requests, plan.lengths)
    cuts = statistics.quantiles(times_us, n=100)
    return Cost(policy, running, waiting, statistics.median(times_us), cuts[98])


def _filled(policy: str, running: int, iterations: int) -> Scheduler:
    longest = _PROMPT + 2 * _BLOCK_SIZE + 2 * iterations
    blocks = (running + 1) * -(-longest // _BLOCK_SIZE)
    config = EngineConfig("none", policy=policy, max_batch_size=running, max_num_batched_tokens=8192)
    cache = KVCache(
        [LayerGroup(None, (0,))],
        [blocks],
        block_size=_BLOCK_SIZE,
        max_sequences=running,
        max_model_len=longest,
        longest_span=8192,
    )
    scheduler = make_scheduler(config, RequestPool(), cache)
    for index in range(running):
        scheduler.add(_request(f"running-{index}", index, 2 * iterations))
    return scheduler


def _request(name: str, index: int, max_tokens: int) -> Request:
    length = _PROMPT + index % _BLOCK_SIZE
    return Request(
        name,
        tuple(range(index, index + length)),
        SamplingParams(max_tokens=max_tokens),
        priority_class=CLASSES[1 + index % 3],
        tenant=f"tenant-{index % 20}",
        ttft_slo_ms=3_600_000 if index % 2 else None,
    )


def _run_until_all_decode(scheduler: Scheduler, running: int) -> None:
    while (plan := scheduler.select()).num_decodes < running:
        _compute(plan.requests, plan.lengths)
    _compute(plan.requests, plan.lengths)


def _compute(requests: Sequence[Request], lengths: Sequence[int]) -> None:
    for request, length in zip(requests, lengths, strict=True):
        if request.launch(length):
            request.append(7)


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Draw medians over the number of waiting requests, one line per number of running ones, one field per policy."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    policies = sorted({cost.policy for cost in costs})
    with pyplot.rc_context(STYLE):
        columns = min(3, len(policies))
        rows = -(-len(policies) // columns)
        figure, fields = pyplot.subplots(
            rows,
            columns,
            sharex=True,
            sharey=True,
            squeeze=False,
            figsize=(3 * columns, 2.6 * rows),
            layout="constrained",
        )
        for axes, policy in zip(fields.flat, policies, strict=False):
            for running in sorted({cost.running for cost in costs}, reverse=True):
                line = [cost for cost in costs if (cost.policy, cost.running) == (policy, running)]
                axes.plot(
                    [cost.waiting for cost in line], [cost.median_us for cost in line], marker="o", markersize=3,
                    label=f"{running} running",
                )  # fmt: skip
            axes.set_title(policy)
            axes.set_ylim(bottom=0)
        for axes in fields[-1]:
            axes.set_xlabel("waiting requests")
        for row in fields:
            row[0].set_ylabel("select(), median, µs")
        fields.flat[0].legend(fontsize=7)
        write_svg(figure, path, "orcastream.bench.scheduler")
        pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table in Markdown, and draw the requested plot."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.scheduler", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="repeatable; default: all")
    parser.add_argument("--running", type=int, nargs="+", default=RUNNING, metavar="N")
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING, metavar="N")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the medians; needs matplotlib")
    options = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, {platform.machine()}; median / p99 of select() in microseconds\n")
    print(f"| policy | running | {' | '.join(f'{waiting:,} waiting' for waiting in options.waiting)} |")
    print("|---|---|" + "---|" * len(options.waiting))
    costs: list[Cost] = []
    for policy in options.policy or sorted(POLICIES):
        for running in options.running:
            line = [measure(policy, running, waiting, options.iterations) for waiting in options.waiting]
            cells = " | ".join(f"{cost.median_us:.0f} / {cost.p99_us:.0f}" for cost in line)
            print(f"| {policy} | {running} | {cells} |", flush=True)
            costs += line
    if options.plot is not None:
        draw(costs, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
