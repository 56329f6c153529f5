"""A workload alternately through gateway and Redis and on the engine alone: how much speed the path costs."""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.figures.spread import percentile
from orcastream.bench.offline.drive import Drive
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.loops import Stop, open_loop
from orcastream.bench.site import ready_site
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, with_other_ids
from orcastream.engine import EngineConfig, OrcaEngine

_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Round:
    """Result of one run: output tokens/s, and each request's TTFT in milliseconds, in order of arrival."""

    output_tokens_per_s: float
    ttft_ms: list[float]


@dataclass(frozen=True)
class Through:
    """Rounds on the engine alone, and through HTTP as seen by a client."""

    model: str
    workload: str
    threads: int
    alone: list[Round] = field(default_factory=list)
    served: list[Round] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Ratio of served to alone: medians of output tokens/s."""
        return _throughput(self.served) / _throughput(self.alone)

    @property
    def ratios(self) -> list[float]:
        """Ratios of served to alone, round by round."""
        pairs = zip(self.served, self.alone, strict=True)
        return [served.output_tokens_per_s / alone.output_tokens_per_s for served, alone in pairs]

    def added_ttft_ms(self, quantile: float) -> float:
        """Return the increase of that quantile (0 to 1) of TTFT when served, over the requests of all rounds."""
        return percentile(sorted(_ttft_ms(self.served)), quantile) - percentile(sorted(_ttft_ms(self.alone)), quantile)

    @property
    def added_to_each_ms(self) -> float:
        """Median increase of a request's TTFT: the same request in the same round, served and alone."""
        pairs = zip(_ttft_ms(self.served), _ttft_ms(self.alone), strict=True)
        return statistics.median(served - alone for served, alone in pairs)


async def through(*, model: str, workload: str, rate: float | None, threads: int, rounds: int, batch: int) -> Through:
    """Measure `rounds` of both, with one engine and one site whose worker has the same settings.

    The engine is idle while the site is measured, and the worker while the engine runs. Each round has new token ids,
    which no prefix cache has seen, and the sides alternate in going first.
    """
    config = EngineConfig(model=model, device="cpu", self_check=False, max_batch_size=batch)
    engine = await asyncio.to_thread(OrcaEngine.load, config)
    await asyncio.to_thread(engine.settle)
    found = Through(model, workload, threads)
    vocab_size = engine.limits.vocab_size
    drawn_from = WORKLOADS[workload]
    requests = drawn_from.build(Draw(vocab_size=vocab_size, requests=drawn_from.requests, rate=rate))
    gateway = {"model": model}
    worker = gateway | {"torch_threads": threads, "max_batch_size": batch, "device": "cpu"}
    fresh = random.SystemRandom()
    async with (
        ready_site(model, worker=worker, gateway=gateway) as (site, served),
        Client(site.url, served) as client,
    ):
        await site.rest()
        for number in range(rounds + 1):
            asked = list(with_other_ids(requests, vocab_size, fresh))
            if number == 0:  # the warm-up
                asked = [replace(one, max_tokens=_WARM_UP_TOKENS, arrival_s=0.0) for one in asked]
            sides: list[tuple[list[Round], Callable[[], Awaitable[Round]]]] = [
                (found.alone, partial(_alone, engine, asked, threads)),
                (found.served, partial(_served, client, asked)),
            ]
            for rounds_of, side in sides if number % 2 else reversed(sides):
                measured = await side()
                if number:
                    rounds_of.append(measured)
    return found


async def _alone(engine: OrcaEngine, requests: Sequence[SampleRequest], threads: int) -> Round:
    return await asyncio.to_thread(_driven, engine, requests, threads)


def _driven(engine: OrcaEngine, requests: Sequence[SampleRequest], threads: int) -> Round:
    torch.set_num_threads(threads)  # the setting is per thread
    drive = Drive(engine, requests, Objectives())
    drive.run()
    return _round(drive.outcomes, drive.until_s - drive.begun_s)


async def _served(client: Client, requests: Sequence[SampleRequest]) -> Round:
    outcomes: list[Outcome] = []
    begun_s = time.monotonic()
    await open_loop(client, requests, outcomes, Stop(), exactly=True)
    return _round(outcomes, time.monotonic() - begun_s)


def _round(outcomes: Sequence[Outcome], seconds: float) -> Round:
    if failed := [outcome.error for outcome in outcomes if not outcome.complete]:
        raise RuntimeError(f"{len(failed)} of {len(outcomes)} requests failed: {failed[0]}")
    in_order = sorted(outcomes, key=lambda outcome: outcome.request.arrival_s)
    return Round(
        output_tokens_per_s=sum(outcome.tokens for outcome in outcomes) / seconds,
        ttft_ms=[outcome.ttft_s * 1000 for outcome in in_order if outcome.ttft_s is not None],
    )


def _throughput(rounds: Sequence[Round]) -> float:
    return statistics.median(one.output_tokens_per_s for one in rounds)


def _ttft_ms(rounds: Sequence[Round]) -> list[float]:
    return [ttft_ms for one in rounds for ttft_ms in one.ttft_ms]
