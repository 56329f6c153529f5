"""An unforeseen error while a worker begins a request ends that request and no other."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orcastream.broker.attach import Attached
from orcastream.broker.claimed import Claimed
from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.request import GenerationRequest
from orcastream.text.matcher import Matcher
from orcastream.worker.admission import Admission
from orcastream.worker.constraints import Constraints
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.worker import Worker
from tests.redis_server import RedisServer, one_server
from tests.worker.demo_engine import demo_engine
from tests.worker.own_settings import own_settings
from tests.worker.producer import Producer

pytestmark = one_server("embedded")


@pytest.fixture
async def worker(producer: Producer, redis_server: RedisServer) -> AsyncIterator[None]:
    """A worker in this process; it must end in order."""
    engine = demo_engine()
    settings = own_settings(lease_ms=1000)
    worker = Worker(settings, redis_server.url, producer.keys, "w1", engine, None)
    running = asyncio.create_task(worker.run())
    yield
    worker.drain()
    await running


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("where", "code"), [("_read", ErrorCode.INVALID_REQUEST), ("_check_end", ErrorCode.DEAD_LETTER)]
)
async def test_an_unforeseen_error_ends_its_own_request(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, where: str, code: ErrorCode
) -> None:
    """The error occurs while the entry is read, or once the log is open."""
    read, check_end = Admission._read, Admission._check_end

    def fail_to_read(admission: Admission, claimed: Claimed, now_ms: int) -> GenerationRequest:
        if claimed.fields[b"id"] == b"bad":
            raise ZeroDivisionError
        return read(admission, claimed, now_ms)

    def fail_to_check(admission: Admission, session: Session, running: Running, outcome: Attached) -> None:
        if running.id == "bad":
            raise ZeroDivisionError
        check_end(admission, session, running, outcome)

    monkeypatch.setattr(Admission, where, {"_read": fail_to_read, "_check_end": fail_to_check}[where])
    producer.post([5, 6, 7], max_tokens=2, request_id="bad")
    good_id = producer.post([5, 6, 7], max_tokens=2)
    bad, good = [(await asyncio.to_thread(producer.read, name)).terminal for name in ("bad", good_id)]
    assert (bad and bad.error, good and good.error) == (code, None)
    await asyncio.to_thread(producer.wait_empty)
    assert [fields[b"id"] for _, fields in producer.redis.xrange(producer.keys.dead)] == [b"bad"]


@pytest.mark.usefixtures("worker")
async def test_an_error_while_compiling_a_constraint_ends_its_own_request(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(constraints: Constraints, constraint: Constraint) -> Matcher:
        raise MemoryError

    monkeypatch.setattr(Constraints, "matcher", fail)
    bad_id = producer.post([5, 6, 7], max_tokens=2, constraint={"choice": ["a"]})
    good_id = producer.post([5, 6, 7], max_tokens=2)
    bad, good = [(await asyncio.to_thread(producer.read, name)).terminal for name in (bad_id, good_id)]
    assert (bad and bad.error, good and good.error) == (ErrorCode.DEAD_LETTER, None)
    await asyncio.to_thread(producer.wait_empty)
