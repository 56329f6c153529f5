"""An attach that fails halfway: the worker attaches to the request again, and it runs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orcastream.broker.scripts import BEGIN
from orcastream.schemas.events import Event, EventId, Output, Run, Started, encode_event
from orcastream.schemas.request import GenerationRequest
from tests.broker.proxy import LossyProxy
from tests.redis_server import RedisServer, one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer
from tests.worker.worker_process import MODEL

pytestmark = one_server("system")

UNSURE = list(range(20, 60))
"""A prompt without sense: the model's answers to it depend on the seed."""
BEGIN_LOG = b"*12\r\n$4\r\nEVAL\r\n$%d\r\n%b" % (len(BEGIN.text), BEGIN.text.encode())
"""What is to come in order goes as text where a link sends it first."""
READ_NEWEST_ENTRY = b"*6\r\n$9\r\nXREVRANGE\r\n"
OPEN_EPOCH = b"*7\r\n$4\r\nXADD\r\n"


def begun(prompt: list[int]) -> Started:
    """The entries that another worker wrote first."""
    return Started("another", MODEL, "default", "normal", "normal 1-0", seed=7, prompt_tokens=len(prompt))


def write_log(producer: Producer, request: GenerationRequest, events: list[Event]) -> None:
    """A much older epoch."""
    for number, event in enumerate(events):
        written = encode_event(event, request.form)
        producer.redis.execute_command("XADD", producer.keys.reply(request.id), f"1000-{number}", *written)


@pytest.mark.parametrize(
    ("has_log", "command", "arrives"),
    [
        pytest.param(False, BEGIN_LOG, False, id="before a log"),
        pytest.param(False, BEGIN_LOG, True, id="between a log's beginning and the engine"),
        pytest.param(True, READ_NEWEST_ENTRY, False, id="before the fence"),
        pytest.param(True, OPEN_EPOCH, False, id="at the fence"),
        pytest.param(True, OPEN_EPOCH, True, id="between the fence and the engine"),
    ],
)
async def test_connection_lost_in_the_middle_of_an_attach(
    producer: Producer,
    redis_server: RedisServer,
    start_worker: StartWorker,
    undisturbed: Callable,
    count_prompt: list[int],
    has_log: bool,
    command: bytes,
    arrives: bool,
) -> None:
    proxy = LossyProxy(redis_server.port)
    await proxy.listen()
    worker = start_worker(proxy.url)
    await asyncio.to_thread(worker.wait_serving)
    request = producer.request(count_prompt, max_tokens=20)
    if has_log:
        write_log(producer, request, [begun(count_prompt)])
    lose = proxy.lose_reply_to if arrives else proxy.lose_command
    lose(command)
    producer.add(request.fields())
    fold = await asyncio.to_thread(producer.read, request.id)
    assert proxy.lost.is_set()
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens[0] == undisturbed(count_prompt, max_tokens=20)
    epochs = {EventId.parse(entry_id).epoch for entry_id, _ in producer.redis.xrange(producer.keys.reply(request.id))}
    assert len(epochs) == 1 + has_log + arrives
    await asyncio.to_thread(producer.wait_empty)
    await proxy.refuse()


@pytest.mark.parametrize("num_logged", [0, 5])
def test_a_first_delivery_continues_from_an_existing_log(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, num_logged: int
) -> None:
    """A Redis without its delivery records delivers a request as if for the first time; the seed is the log's."""
    drawn: dict[str, Any] = {"max_tokens": 40, "temperature": 2.0, "ignore_eos": True}
    answer = undisturbed(UNSURE, **drawn, seed=7)
    assert answer != undisturbed(UNSURE, **drawn, seed=8)
    request = producer.request(UNSURE, **drawn)
    events: list[Event] = [begun(UNSURE)]
    if num_logged:
        events.append(Output((Run(0, 0, tuple(answer[:num_logged])),)))
    write_log(producer, request, events)
    producer.add(request.fields())
    start_worker()
    fold = producer.read(request.id)
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens == [answer]
    producer.wait_empty()
