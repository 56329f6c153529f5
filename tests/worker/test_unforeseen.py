"""An unforeseen error while a worker begins a request ends that request and no other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import ResponseError

from orcastream.broker.attach import Attached
from orcastream.broker.claimed import Claimed
from orcastream.broker.errors import Unwritable
from orcastream.broker.lease import HANDED_OVER_MS
from orcastream.engine import Request
from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import GROUP
from orcastream.schemas.request import GenerationRequest
from orcastream.text.matcher import Matcher
from orcastream.worker.admission import Admission
from orcastream.worker.constraints import Constraints
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.worker import Worker
from tests.patience import PATIENCE_S
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
    await _check_ends(producer, {"bad": code, good_id: None})
    assert [fields[b"id"] for _, fields in producer.redis.xrange(producer.keys.dead)] == [b"bad"]


def claimed_elsewhere(producer: Producer, *, idle_ms: int = 0, timeout_s: float = PATIENCE_S) -> None:
    """Post a request `bad` that another worker has claimed."""
    producer.post([5, 6, 7], max_tokens=2, request_id="bad", timeout_s=timeout_s)
    stream = producer.keys.requests("normal")
    producer.redis.xgroup_create(stream, GROUP, "0")
    [(_, [(entry_id, _)])] = producer.redis.xreadgroup(GROUP, "w0", {stream: ">"})
    producer.redis.xclaim(stream, GROUP, "w0", 0, [entry_id], idle=idle_ms, justid=True)


@pytest.fixture
def handed_over(producer: Producer) -> None:
    """The request `bad`, handed over by another worker."""
    claimed_elsewhere(producer, idle_ms=HANDED_OVER_MS)


@pytest.fixture
def overdue(producer: Producer) -> None:
    """The request `bad`, which another worker did not end at its deadline."""
    claimed_elsewhere(producer, timeout_s=-10)


@pytest.fixture
def restarts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's part of the request `bad` cannot be made."""
    engine_requests = Running.engine_requests

    def fail(running: Running) -> list[Request]:
        if running.id == "bad":
            raise ZeroDivisionError
        return engine_requests(running)

    monkeypatch.setattr(Running, "engine_requests", fail)


@pytest.mark.usefixtures("handed_over", "restarts_fail", "worker")
async def test_an_unforeseen_error_after_a_takeover_ends_its_own_request(producer: Producer) -> None:
    good_id = producer.post([5, 6, 7], max_tokens=2)
    await _check_ends(producer, {"bad": ErrorCode.DEAD_LETTER, good_id: None})


@pytest.mark.usefixtures("handed_over", "restarts_fail", "worker")
async def test_a_request_that_could_not_be_set_aside_begins_once_it_can(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be taken for begun, and then wait for output until its deadline."""

    async def refuse(admission: Admission, session: Session, running: Running, why: str) -> None:
        monkeypatch.undo()
        raise Unwritable(ResponseError("OOM command not allowed"))

    monkeypatch.setattr(Admission, "set_aside", refuse)
    terminal = (await asyncio.to_thread(producer.read, "bad")).terminal
    assert terminal
    assert terminal.error is None
    await asyncio.to_thread(producer.wait_empty)


@pytest.fixture
def reading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the request `bad` cannot be read."""
    from_fields = GenerationRequest.from_fields

    def fail(fields: dict[bytes, bytes], **options: Any) -> GenerationRequest:
        if fields[b"id"] == b"bad":
            raise ZeroDivisionError
        return from_fields(fields, **options)

    monkeypatch.setattr(GenerationRequest, "from_fields", fail)


@pytest.mark.usefixtures("overdue", "reading_fails", "worker")
async def test_an_overdue_entry_that_cannot_be_read_expires_alone(producer: Producer) -> None:
    good_id = producer.post([5, 6, 7], max_tokens=2)
    await _check_ends(producer, {"bad": ErrorCode.EXPIRED, good_id: None})


@pytest.mark.usefixtures("worker")
async def test_an_error_while_compiling_a_constraint_ends_its_own_request(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(constraints: Constraints, constraint: Constraint) -> Matcher:
        raise MemoryError

    monkeypatch.setattr(Constraints, "matcher", fail)
    bad_id = producer.post([5, 6, 7], max_tokens=2, constraint={"choice": ["a"]})
    good_id = producer.post([5, 6, 7], max_tokens=2)
    await _check_ends(producer, {bad_id: ErrorCode.DEAD_LETTER, good_id: None})


async def _check_ends(producer: Producer, errors: dict[str, ErrorCode | None]) -> None:
    """Check with which error, or none, each request ends, and that the queue is empty then."""
    ends = {name: (await asyncio.to_thread(producer.read, name)).terminal for name in errors}
    assert {name: end and end.error for name, end in ends.items()} == errors
    assert None not in ends.values()
    await asyncio.to_thread(producer.wait_empty)
