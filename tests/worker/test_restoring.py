"""A request that Redis lost while it ended here: it still ends, without waiting for anyone."""

import asyncio
from copy import copy
from typing import Any

import pytest

from orcastream.broker.entry import EntryRef
from orcastream.broker.queue import EntryState
from orcastream.engine import TokenEvent
from orcastream.schemas.errors import ErrorCode
from orcastream.worker.restoring import Restorer
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from tests.redis_server import one_server
from tests.worker.claimed_here import claim_and_attach, session
from tests.worker.producer import Producer

__all__ = ["session"]

pytestmark = one_server("embedded")


@pytest.mark.parametrize("log_is_lost", [False, True])
async def test_a_cancelled_request_ends_with_what_was_computed(
    session: Session, producer: Producer, log_is_lost: bool
) -> None:
    request_id = producer.post([5, 6, 7], max_tokens=4)
    running = await claim_and_attach(session)
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


async def test_a_request_that_is_lost_again_meanwhile_is_restored(
    session: Session, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found to have an owner, which was this worker, and lost it in the same moment."""
    request_id = producer.post([5, 6, 7], max_tokens=4)
    running, restorer = await claim_and_attach(session), Restorer(60_000, frozenset())
    stream, state, again = producer.keys.requests("normal"), session.queue.state, copy(running)

    async def state_before_the_loss(ref: EntryRef, request_id: str) -> EntryState:
        found = await state(ref, request_id)
        if producer.redis.delete(stream):
            restorer.add(again)
        return found

    monkeypatch.setattr(session.queue, "state", state_before_the_loss)
    restorer.add(running)
    await restorer.step(session)
    await session.queue.ensure_groups()
    await restorer.step(session)
    assert [fields[b"id"].decode() for _, fields in producer.redis.xrange(stream)] == [request_id]


async def test_a_request_whose_keys_may_all_have_expired_is_left_alone(session: Session, producer: Producer) -> None:
    """The request may have ended elsewhere while this worker was stopped."""
    request_id = producer.post([5, 6, 7], max_tokens=4, timeout_s=0.5)
    running = await claim_and_attach(session)
    await asyncio.sleep(0.6)
    producer.redis.flushdb()
    await session.queue.ensure_groups()
    restorer = Restorer(1, frozenset())
    restorer.add(running)
    await restorer.step(session)
    assert producer.redis.xlen(producer.keys.requests("normal")) == 0
    assert not producer.redis.exists(producer.keys.reply(request_id))


async def test_another_request_with_its_entry_id_is_not_taken_for_it(session: Session, producer: Producer) -> None:
    """A master that did not know of the request gave its entry id to another one."""
    request_id = producer.post([5, 6, 7], max_tokens=4)
    running = await claim_and_attach(session)
    other = producer.request([5, 6, 7], max_tokens=4)
    producer.redis.flushdb()
    await session.queue.ensure_groups()
    producer.redis.xadd(producer.keys.requests("normal"), other.fields(), id=running.ref.entry_id)
    restorer = Restorer(60_000, frozenset())
    restorer.add(running)
    await restorer.step(session)
    waiting = [fields[b"id"].decode() for _, fields in producer.redis.xrange(producer.keys.requests("normal"))]
    assert waiting == [other.id, request_id]


async def test_an_unforeseen_error_stops_no_other_request(
    session: Session, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_id, good_id = [producer.post([5, 6, 7], max_tokens=4) for _ in range(2)]
    bad, good = [await claim_and_attach(session) for _ in range(2)]
    producer.redis.delete(stream := producer.keys.requests("normal"))
    await session.queue.ensure_groups()
    attached = Running.attached

    def fail(running: Running, *args: Any) -> bool:
        if running.id == bad_id:
            raise ZeroDivisionError
        return attached(running, *args)

    monkeypatch.setattr(Running, "attached", fail)
    restorer = Restorer(60_000, frozenset())
    restorer.add(bad)
    restorer.add(good)
    await restorer.step(session)
    assert [fields[b"id"].decode() for _, fields in producer.redis.xrange(stream)] == [good_id]
