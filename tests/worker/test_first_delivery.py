"""The engine starts a request before its log is read only if no worker can have begun it and it is due to run."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from orcastream.engine import Request
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output
from orcastream.worker.adapter_shelf import AdapterShelf
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED

pytestmark = one_server("system")

Serve = Callable[..., AbstractAsyncContextManager[list[Request]]]


@pytest.fixture
def serving(producer: Producer, redis_server: RedisServer) -> Serve:
    """Serve in this process; yield the requests that the engine is given."""

    @asynccontextmanager
    async def serve(shelf: AdapterShelf | None = None) -> AsyncIterator[list[Request]]:
        engine = demo_engine()
        submit, given = engine.submit, list[Request]()

        def note(request: Request) -> None:
            given.append(request)
            submit(request)

        engine.submit = note  # type: ignore[method-assign]
        settings = own_settings(lease_ms=1000)
        worker = Worker(settings, redis_server.url, producer.keys, "here", engine, None, shelf)
        running = asyncio.create_task(worker.run())
        try:
            yield given
        finally:
            worker.drain()
            async with asyncio.timeout(PATIENCE_S):
                await running

    return serve


async def test_a_handed_over_request_continues_from_its_log(
    producer: Producer, start_worker: StartWorker, serving: Serve, undisturbed: Callable, count_prompt: list[int]
) -> None:
    """A hand-over does not count as a delivery."""
    leaving = start_worker(drain_grace_s=0, patch=PACED)
    await asyncio.to_thread(leaving.wait_serving)
    request_id = producer.post(count_prompt, **LONG)
    outputs = (event for _, event in producer.events(request_id) if isinstance(event, Output))
    await asyncio.to_thread(lambda: [next(outputs) for _ in range(5)])
    leaving.signal(signal.SIGTERM)
    assert await asyncio.to_thread(leaving.wait) == 0
    async with serving() as given:
        fold = await asyncio.to_thread(producer.read, request_id)
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert [len(one.output_ids) >= 5 for one in given] == [True]


async def test_a_request_whose_deadline_has_passed(producer: Producer, serving: Serve, count_prompt: list[int]) -> None:
    late = producer.post(count_prompt, timeout_s=0.001)
    await asyncio.sleep(0.01)
    async with serving() as given:
        fold = await asyncio.to_thread(producer.read, late)
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.EXPIRED
    assert given == []


async def test_a_request_whose_adapter_cannot_be_read(
    producer: Producer, serving: Serve, count_prompt: list[int]
) -> None:
    request_id = producer.post(count_prompt, adapter="missing", max_tokens=3)
    async with serving(AdapterShelf({"missing": Path("/nowhere")}, None, 1)) as given:
        fold = await asyncio.to_thread(producer.read, request_id)
    assert fold.terminal is not None
    assert (fold.terminal.error, fold.terminal.field_name) == (ErrorCode.ENGINE_ERROR, "adapter")
    assert given == []
