"""What an iteration loses to the event loop beside it: one engine, alone in turn and inside a worker that publishes."""

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
"""About how long all decode on either side of a round, with a model that computes few iterations meanwhile."""


@dataclass(frozen=True)
class Sharing:
    """Median milliseconds from one iteration's begin to the next one's, `running` requests decoding in both."""

    model: str
    running: int
    alone_ms: float
    published_ms: float

    @property
    def longer(self) -> float:
        """By what share of itself an iteration takes longer while its tokens are published."""
        return self.published_ms / self.alone_ms - 1


async def sharing(url: str, link: Link, *, model: str, running: int, rounds: int) -> Sharing:
    """Both take turns, so that whatever else the machine does meets both. A large model gives shorter answers."""
    torch.set_num_threads(1)
    config = EngineConfig(
        model=model or str(demo.MODEL_DIR), device="cpu", self_check=False, prefix_cache=False,
        max_batch_size=running, max_num_batched_tokens=4096,
    )  # fmt: skip
    engine = _Recording(OrcaEngine.load(config))
    alone_ms: list[float] = []
    published_ms: list[float] = []
    fewest = _FEWEST_TOKENS + running // 16  # so that all decode for a while, whose prompts are computed in turn
    tokens = fewest  # of the first round, which warms everything up
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
    """An engine that notes when iterations begin in which everybody decodes."""

    def __init__(self, engine: OrcaEngine) -> None:
        self._engine = engine
        self._running = 0
        self._begun_s: list[float] = []

    def begin(self, running: int) -> None:
        """Forget what was noted; from now on `running` requests make a full batch."""
        self._running, self._begun_s = running, []

    def intervals_ms(self) -> list[float]:
        """Between the begins of neighbouring full iterations."""
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
