"""An attach that fails half-way: the request is attached to again, and runs."""

import asyncio
from collections.abc import Callable

import pytest

from tests.broker.proxy import LossyProxy
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer

pytestmark = one_server("system")

IS_IT_CANCELLED = b"*2\r\n$6\r\nEXISTS\r\n"
READ_NEWEST_ENTRY = b"*6\r\n$9\r\nXREVRANGE\r\n"
OPEN_EPOCH = b"*7\r\n$4\r\nXADD\r\n"


@pytest.mark.parametrize(
    "command",
    [READ_NEWEST_ENTRY, OPEN_EPOCH, IS_IT_CANCELLED],
    ids=["before the fence", "at the fence", "between the fence and the engine"],
)
async def test_connection_lost_in_the_middle_of_an_attach(
    producer: Producer,
    redis_server: RedisServer,
    start_worker: StartWorker,
    undisturbed: Callable,
    count_prompt: list[int],
    command: bytes,
) -> None:
    proxy = LossyProxy(redis_server.port)
    await proxy.listen()
    worker = start_worker(proxy.url)
    await asyncio.to_thread(worker.wait_serving)
    proxy.lose_command(command)
    request_id = producer.post(count_prompt, max_tokens=20)
    fold = await asyncio.to_thread(producer.read, request_id)
    assert proxy.lost.is_set()
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens[0] == undisturbed(count_prompt, max_tokens=20)
    await asyncio.to_thread(producer.wait_empty)
    await proxy.refuse()
