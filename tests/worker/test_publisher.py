"""What is written counts for the request: something new takes back the attempt that its beginning counted."""

from collections.abc import AsyncIterator

import pytest

from orcastream.broker.attach import Attached
from orcastream.engine import PromptEvent, TokenEvent
from orcastream.schemas.keys import GROUP
from orcastream.schemas.request import GenerationRequest
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.publisher import Publisher
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.settings import WorkerSettings
from tests.redis_server import RedisServer, one_server
from tests.worker.producer import Producer

pytestmark = one_server("embedded")


@pytest.fixture
async def session(redis_server: RedisServer, producer: Producer) -> AsyncIterator[Session]:
    settings = WorkerSettings(_env_file=None)  # type: ignore[call-arg]
    session = await Session.open(settings, redis_server.url, producer.keys, "w1", reconnected=False)
    yield session
    await session.close()


async def begin(session: Session, producer: Producer) -> Running:
    """A request whose prompt is told, which runs alone as an attempt that counts."""
    producer.post([5, 6, 7], max_tokens=4, prompt_logprobs=1)
    (claimed,) = await session.claimer.new(1)
    request = GenerationRequest.from_fields(
        claimed.fields, stream_class=claimed.ref.priority_class, now_ms=session.now_ms, max_payload_bytes=1000
    )
    running = Running(claimed, request, max_tokens=4, tokenizer=None, claimed_ms=session.now_ms)
    outcome = await session.attach(running)
    assert isinstance(outcome, Attached)
    assert running.attached(outcome.log, outcome.fold, ())
    running.counted = True
    session.leases.count_attempt(running.ref)
    return running


async def deliveries(session: Session, running: Running) -> int:
    key = session.keys.requests(running.ref.priority_class)
    ((*_, number),) = await session.link.call("XPENDING", key, GROUP, "-", "+", "1")
    return int(number)


async def test_the_first_piece_of_a_prompt_forgives_and_so_does_a_token(session: Session, producer: Producer) -> None:
    running = await begin(session, producer)
    publisher = Publisher(Lifecycle(session.keys, "w1", WorkerMetrics(session.keys.model)))
    (request,) = running.engine_requests()
    assert await deliveries(session, running) == 2
    for event in (
        PromptEvent(request.id, 0, (None,), (None,)),
        PromptEvent(request.id, 1, ([-1.0, []], [-1.0, []]), (1, 1)),
        TokenEvent(request.id, 0, 9),
    ):
        if isinstance(event, PromptEvent):
            running.accept_prompt(event)
        else:
            running.accept(running.choices[0], event)
        publisher.mark([running])
        await publisher.flush(session)
        assert (running.counted, await deliveries(session, running)) == (False, 1)
