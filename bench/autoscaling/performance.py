"""A recorded run: a rising and falling load on a site whose workers start and stop."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from orcastream.bench.arrivals import RateProfile
from orcastream.bench.autoscaling.keda import Autoscaler
from orcastream.bench.autoscaling.series import Sample, Series, Served
from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.loops import Stop, open_loop
from orcastream.bench.serve.questions import DEMO_MODEL, known_by_heart
from orcastream.bench.serve.report import Report
from orcastream.bench.site import Site

_SAMPLE_S = 0.25
_PAUSE_S = 10.0
"""Idle time before the single request that wakes the service up."""
_PATIENCE_S = 600.0


class Performance:
    """One run: the site, its autoscaler, and the recorded series."""

    def __init__(self, site: Site, autoscaler: Autoscaler, series: Series) -> None:
        self._site = site
        self._autoscaler = autoscaler
        self._series = series
        self._begun_s = time.monotonic()
        self._at_zero = asyncio.Event()
        self.outcomes: list[Outcome] = []

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    async def perform(self, profile: RateProfile, seed: int) -> None:
        """Load, wait for zero, send one request, wait for zero; record. Raises TimeoutError if zero is not reached."""
        spec = self._autoscaler.spec
        keepers = [
            asyncio.create_task(_every(_SAMPLE_S, self._look)),
            asyncio.create_task(_every(spec.polling_interval_s, self._poll)),
            asyncio.create_task(_every(spec.sync_period_s, self._sync)),
        ]
        asking = asyncio.create_task(self._ask(profile, seed))
        done, _ = await asyncio.wait((asking, *keepers), return_when=asyncio.FIRST_COMPLETED)
        for task in (asking, *keepers):
            task.cancel()
        await asyncio.gather(asking, *keepers, return_exceptions=True)
        for task in done:
            task.result()
        self._series.requests.extend(self._served(outcome) for outcome in self.outcomes)

    def report(self) -> Report:
        """Return the clients' measurements, from the beginning of the load to its last answer."""
        marks = self._series.marks
        begun_s, until_s = (self._begun_s + marks[name] for name in ("load begins", "last answer"))
        return Report(self.outcomes, begun_s, until_s)

    async def _ask(self, profile: RateProfile, seed: int) -> None:
        questions = known_by_heart(seed)
        async with Client(self._site.url, DEMO_MODEL, timeout_s=_PATIENCE_S) as client:
            self._mark("load begins")
            arrivals = profile.arrivals(random.Random(f"arrivals {seed}"))
            requests = (replace(questions.draw(), arrival_s=at) for at in arrivals)
            await open_loop(client, requests, self.outcomes, Stop())
            self._mark("last answer")
            await self._zero()
            self._mark("zero")
            await asyncio.sleep(_PAUSE_S)
            self._mark("one request")
            self.outcomes.append(await client.ask(questions.draw()))
            await self._zero()
            self._mark("zero again")

    async def _zero(self) -> None:
        self._at_zero.clear()
        async with asyncio.timeout(_PATIENCE_S):
            await self._at_zero.wait()

    async def _look(self) -> None:
        queue, people = await self._site.queue_length(), await self._site.headcount()
        wanted = self._autoscaler.replicas
        self._series.samples.append(
            Sample(round(self.now_s, 3), queue, wanted, people.ready, people.starting, people.draining)
        )
        if not (wanted or people.ready or people.starting or people.draining):
            self._at_zero.set()

    async def _poll(self) -> None:
        await self._site.scale_to(self._autoscaler.poll(time.monotonic(), await self._site.queue_length()))

    async def _sync(self) -> None:
        await self._site.scale_to(self._autoscaler.sync(time.monotonic(), await self._site.queue_length()))

    def _mark(self, name: str) -> None:
        self._series.marks[name] = round(self.now_s, 3)

    def _served(self, outcome: Outcome) -> Served:
        return Served(
            round(outcome.arrived_s - self._begun_s, 3),
            None if outcome.ttft_s is None else round(outcome.ttft_s, 4),
            None if outcome.e2e_s is None else round(outcome.e2e_s, 4),
            outcome.exact is True,
            tuple(outcome.workers),
        )


async def _every(period_s: float, act: Callable[[], Awaitable[None]]) -> None:
    due = time.monotonic()
    while True:
        await act()
        due = max(due + period_s, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
