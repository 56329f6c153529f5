"""A worker's session in the test process, and a request that it has claimed."""

from collections.abc import AsyncIterator

import pytest

from orcastream.broker.attach import Attached
from orcastream.schemas.request import GenerationRequest
from orcastream.worker.constraints import Constraints
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from tests.redis_server import RedisServer
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer


@pytest.fixture
async def session(redis_server: RedisServer, producer: Producer) -> AsyncIterator[Session]:
    """The session of the worker `w1`."""
    session = await open_session(redis_server.url, producer)
    yield session
    await session.close()


async def open_session(url: str, producer: Producer, *, reconnected: bool = False) -> Session:
    """A session of the worker `w1`."""
    settings = own_settings()
    return await Session.open(settings, url, producer.keys, "w1", reconnected=reconnected)


async def claim_and_attach(session: Session, *, max_tokens: int = 4) -> Running:
    """Claim the next waiting request and open its epoch; the engine has not started it yet."""
    (claimed,) = await session.claimer.new(1)
    request = GenerationRequest.from_fields(
        claimed.fields, stream_class=claimed.ref.priority_class, now_ms=session.now_ms, max_payload_bytes=1000
    )
    running = Running(
        claimed,
        request,
        max_tokens=max_tokens,
        tokenizer=None,
        claimed_ms=session.now_ms,
        constraints=Constraints(None, vocab_size=0, eos_token_ids=()),
    )
    outcome = await session.attach(running)
    assert isinstance(outcome, Attached)
    running.last_epoch = outcome.log.epoch
    assert running.attached(outcome.log, outcome.fold, ())
    return running
