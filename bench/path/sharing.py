"""Slowdown of iterations by the event loop: one engine, alternately alone and inside a worker that publishes."""

import asyncio
import statistics
import uuid
from dataclasses import dataclass
from typing import Any, cast

import torch

from orcastream import demo
from orcastream.bench.path.publishing import all_ended, post, working
from orcastream.broker.link import Link
from orcastream.engine import EngineConfig, OrcaEngine, Request, TokenEvent
from orcastream.schemas.sampling import SamplingParams

_PROMPT = tuple(range(20, 52))
_MOST_TOKENS = 100
_FEWEST_TOKENS = 8
_SIDE_MS = 6000.0
"""Approximate decode time on either side of a round, for a model with few iterations in that time."""


@dataclass(frozen=True)
class Sharing:
    """Median milliseconds between the starts of consecutive iterations in which `running` requests decode."""

    model: str
    running: int
    alone_ms: float
    published_ms: float

    @property
    def longer(self) -> float:
        """Relative increase of an iteration's time while its tokens are published."""
        return self.published_ms / self.alone_ms - 1


async def sharing(url: str, link: Link, *, model: str, running: int, rounds: int) -> Sharing:
    """Alternate both, so that other activity of the machine affects both. A large model gives shorter answers."""
    torch.set_num_threads(1)
    config = EngineConfig(
        model=model or str(demo.MODEL_DIR), device="cpu", self_check=False, prefix_cache=False,
        max_batch_size=running, max_num_batched_tokens=4096,
    )  # fmt: skip
    engine = _Recording(OrcaEngine.load(config))
    alone_ms: list[float] = []
    published_ms: list[float] = []
    fewest = _FEWEST_TOKENS + running // 16  # prompts are computed in turn, so all must decode for a while
    tokens = fewest  # in the first round, which warms everything up
    for number in range(rounds + 1):
        engine.begin(running)
        await asyncio.to_thread(_run_alone, engine, running, tokens)
        alone = engine.intervals_ms()
        engine.begin(running)
        async with working(url, cast(OrcaEngine, engine), running):
            await post(link, running, max_tokens=tokens, prompt=_PROMPT)
            await all_ended(link)
        await link.call("FLUSHDB")
        if number:
            alone_ms += alone
            published_ms += engine.intervals_ms()
        else:
            tokens = max(round(min(_SIDE_MS / statistics.median(alone), _MOST_TOKENS)), fewest)
    return Sharing(model or "demo", running, statistics.median(alone_ms), statistics.median(published_ms))


def _run_alone(engine: "_Recording", running: int, tokens: int) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for _ in range(running):
        engine.submit(Request(uuid.uuid4().hex, _PROMPT, params))
    while engine.has_work:
        engine.step()


class _Recording:
    """An engine that records the starts of iterations in which all requests decode."""

    def __init__(self, engine: OrcaEngine) -> None:
        self._engine = engine
        self._running = 0
        self._begun_s: list[float] = []

    def begin(self, running: int) -> None:
        """Clear the record; from now on `running` requests are a full batch."""
        self._running, self._begun_s = running, []

    def intervals_ms(self) -> list[float]:
        """Return the times between the starts of neighboring full iterations."""
        return [(after - before) * 1000 for before, after in zip(self._begun_s, self._begun_s[1:], strict=False)]

    def step(self) -> list[TokenEvent]:
        """One iteration."""
        events = self._engine.step()
        record = self._engine.last_iteration
        if record is not None and record.decode_tokens == self._running:
            self._begun_s.append(record.started_s)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
