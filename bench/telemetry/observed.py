"""Two workers with one engine in this process; telemetry observes one and not the other.

Two processes of the same program can differ by several percent throughout their life, depending on their memory layout.
Telemetry costs less than that, so it is measured where nothing else differs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, cast
from unittest.mock import patch

import torch
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import NoOpTracer, Span, Tracer, get_tracer

from orcastream import demo
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.engine import EngineConfig, OrcaEngine, Request, TokenEvent
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, parse_payload
from orcastream.telemetry import instruments, trace_context
from orcastream.worker.settings import WorkerSettings
from orcastream.worker.worker import Worker

_PROMPT = tuple(range(20, 52))
_DEADLINE_MS = 600_000
_POLL_S = 0.005
_ITERATIONS_TRACED = 0.001

_is_observed: ContextVar[bool] = ContextVar("is_observed", default=True)


class Served:
    """One of the two workers with its queue."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._queue = RequestQueue(link, keys)
        self._count = 0

    async def throughput(self, requests: int, tokens: int) -> float:
        """Return output tokens per second of `requests` posted at once, from the first post to the last end."""
        begun_s = time.monotonic()
        for _ in range(requests):
            self._count += 1
            payload = parse_payload({"prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0})
            deadline_ms = int(time.time() * 1000) + _DEADLINE_MS
            request = GenerationRequest(f"cost-{self._count}", payload, deadline_ms)
            await self._queue.enqueue(request, terms=None, retention_ms=1000)
        await self._ended()
        return requests * tokens / (time.monotonic() - begun_s)

    async def _ended(self) -> None:
        while True:
            if not await self._queue.depth():
                return
            await asyncio.sleep(_POLL_S)


class _OwnWork:
    """One worker's view of the engine: there is work only while a request of that worker runs.

    An idle loop may still be woken late, by a publication, when the other worker's requests are already in the engine:
    it would step them concurrently with the other worker.
    """

    def __init__(self, engine: OrcaEngine) -> None:
        self._engine = engine
        self._under_way: set[str] = set()

    @property
    def has_work(self) -> bool:
        return bool(self._under_way)

    def submit(self, request: Request) -> None:
        self._engine.submit(request)
        self._under_way.add(request.id)

    def cancel(self, request_id: str) -> bool:
        self._under_way.discard(request_id)
        return self._engine.cancel(request_id)

    def step(self) -> list[TokenEvent]:
        events = self._engine.step()
        self._under_way -= {event.request_id for event in events if event.finish_reason or event.error}
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@asynccontextmanager
async def one_engine(redis_url: str) -> AsyncIterator[tuple[Served, Served]]:
    """Yield the unobserved worker and the observed one; only one of them may have work at a time."""
    torch.set_num_threads(1)
    engine = OrcaEngine.load(EngineConfig(model=str(demo.MODEL_DIR), device="cpu", self_check=False))
    link = await Link.open(redis_url, name="bench")
    running: list[tuple[Worker, asyncio.Task[None]]] = []
    served: list[Served] = []
    with _choosing_tracer():
        for is_observed in (False, True):
            keys = Keys(DEMO_MODEL, "observed" if is_observed else "unobserved")
            with _telling(is_observed):
                settings = WorkerSettings(
                    model=str(demo.MODEL_DIR), iteration_trace_ratio=_ITERATIONS_TRACED if is_observed else 0.0
                )
                own_work = cast(OrcaEngine, _OwnWork(engine))
                worker = Worker(settings, redis_url, keys, keys.namespace, own_work, None)
                running.append((worker, asyncio.create_task(worker.run())))
            served.append(Served(link, keys))
        yield served[0], served[1]
        for worker, task in running:
            worker.drain()
            await task
    await link.close()


@contextmanager
def _telling(is_observed: bool) -> Iterator[None]:
    """Objects created, and spans begun, in this context are observed or not."""
    token = _is_observed.set(is_observed)
    try:
        if is_observed:
            yield
        else:
            with patch.object(instruments, "get_meter", NoOpMeter):
                yield
    finally:
        _is_observed.reset(token)


@contextmanager
def _choosing_tracer() -> Iterator[None]:
    """Make the process's tracer depend on its caller."""
    with patch.object(trace_context, "get_tracer", _ChoosingTracer):
        trace_context.tracer.cache_clear()
        try:
            yield
        finally:
            trace_context.tracer.cache_clear()


class _ChoosingTracer(NoOpTracer):
    def __init__(self, name: str) -> None:
        self._observing = get_tracer(name)

    def start_span(self, *args: Any, **options: Any) -> Span:
        tracer: Tracer = self._observing if _is_observed.get() else _UNOBSERVING
        return tracer.start_span(*args, **options)


_UNOBSERVING = NoOpTracer()
