"""A request that Redis lost while it ended here: it ends all the same, and waits for nobody."""

from collections.abc import AsyncIterator

import pytest

from orcastream.broker.attach import Attached
from orcastream.engine import TokenEvent
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.request import GenerationRequest
from orcastream.worker.restoring import Restorer
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


@pytest.mark.parametrize("log_is_lost", [False, True])
async def test_one_that_was_cancelled_ends_with_what_was_computed(
    session: Session, producer: Producer, log_is_lost: bool
) -> None:
    request_id = producer.post([5, 6, 7], max_tokens=4)
    (claimed,) = await session.claimer.new(1)
    request = GenerationRequest.from_fields(
        claimed.fields, stream_class=claimed.ref.priority_class, now_ms=session.now_ms, max_payload_bytes=1000
    )
    running = Running(claimed, request, max_tokens=4, tokenizer=None, claimed_ms=session.now_ms)
    outcome = await session.attach(running)
    assert isinstance(outcome, Attached)
    assert running.attached(outcome.log, outcome.fold, ())
    running.last_epoch = outcome.log.epoch
    (asked,) = running.engine_requests()
    running.accept(running.choices[0], TokenEvent(asked.id, 0, 9))
    running.fail(ErrorCode.CANCELLED, "the request was cancelled")
    producer.redis.delete(producer.keys.requests("normal"))
    if log_is_lost:
        producer.redis.delete(producer.keys.reply(request_id))
    await session.queue.ensure_groups()
    restorer = Restorer(60_000, frozenset())
    restorer.add(running)
    await restorer.step(session)
    assert producer.redis.xlen(producer.keys.requests("normal")) == 0
    fold = producer.read(request_id)
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.CANCELLED
    assert fold.tokens == [[9]]
