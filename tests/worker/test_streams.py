"""Streamed tokens: whatever happens between two of them, each appears in the log once and in order."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from orcastream.broker.attach import Attached
from orcastream.broker.fold import Fold
from orcastream.broker.link import Link
from orcastream.engine import TokenEvent
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import EventId, decode_event
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry.names import Outcome
from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.outbox import Outbox
from orcastream.worker.publisher import Publisher
from orcastream.worker.restoring import Restorer
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from tests.redis_server import RedisServer, one_server
from tests.worker.claimed_here import claim_and_attach, open_session, session
from tests.worker.producer import Producer

__all__ = ["session"]

pytestmark = one_server("embedded")

MAX_TOKENS = 40


@dataclass
class Computed:
    """A request, and what the engine has generated for it."""

    running: Running
    tokens: list[int]
    finished: bool = False

    @property
    def engine_id(self) -> str:
        (engine_id,) = self.running.engine_ids()
        return engine_id


class Stage:
    """A worker's path from engine to log; the test scripts the engine and all other events."""

    def __init__(self, session: Session, producer: Producer) -> None:
        self.session = session
        self.producer = producer
        self.roster = Roster(8)
        self.num_delivered = self.num_published = 0
        self.lifecycle = Lifecycle(session.keys, "w1", WorkerMetrics(session.keys.model))
        self.publisher = Publisher(self.lifecycle, self._published)
        self.outbox = Outbox(self.roster, self.publisher)
        self.engine_loop = EngineLoop(cast(Any, None), lambda _: None, max_unpublished=100)
        self.requests: list[Computed] = []

    async def begin(self, **options: Any) -> Computed:
        self.producer.post([5, 6, 7], max_tokens=MAX_TOKENS, form=Form.MSGPACK, **options)
        running = await claim_and_attach(self.session, max_tokens=MAX_TOKENS)
        self.roster.add(running)
        self.roster.submitted(running)
        self.requests.append(Computed(running, []))
        return self.requests[-1]

    def compute(self, *requests: Computed, finish: bool = False) -> None:
        """Run one iteration with one token per request; for those in `finish`, the last."""
        events = []
        for request in requests:
            position = len(request.tokens)
            request.tokens.append(position * 7919 % 100_000)
            request.finished = finish or position + 1 == MAX_TOKENS
            reason = FinishReason.LENGTH if request.finished else None
            events.append(TokenEvent(request.engine_id, position, request.tokens[-1], reason))
        self.num_delivered += len(events)
        self.outbox.deliver(list(events))

    async def publish(self) -> None:
        """Do what the worker's task does when it is woken."""
        self.publisher.wake.clear()
        self._published(self.outbox.take(self.engine_loop))
        flushed = await self.publisher.flush(self.session)
        for running, _ in flushed.ended:
            self.roster.remove(running)
        for running in flushed.fenced:
            await self.attach(running)

    async def compute_around_the_opening(self, request: Computed) -> None:
        """Compute three tokens: the second arrives while the first is in flight, the third once a stream exists."""
        self.compute(request)
        await asyncio.sleep(0)
        publishing = asyncio.create_task(self.publish())
        await asyncio.sleep(0)
        self.compute(request)
        await publishing
        assert request.running.stream is not None
        self.compute(request)
        await asyncio.sleep(0)

    async def take_all(self) -> None:
        """Do what the worker does at the end of a drain; refusals are left for the next owner."""
        self._published(self.outbox.take(self.engine_loop))
        for running in await self.publisher.finish(self.session):
            self.roster.remove(running)
        for running in self.roster:
            if running.log is None:
                await self.attach(running)

    async def attach(self, running: Running) -> None:
        outcome = await self.session.attach(running)
        if not isinstance(outcome, Attached):
            assert running.answered or running.error is not None
            self.roster.remove(running)
            return
        running.last_epoch = outcome.log.epoch
        assert not running.attached(outcome.log, outcome.fold, ())  # the engine continues undisturbed
        self.publisher.mark([running])

    def fence(self, request: Computed) -> None:
        """The owner in between wrote only a started event."""
        redis, key = self.producer.redis, self.producer.keys.reply(request.running.id)
        ((_, started),) = redis.xrange(key, count=1)
        ((last, _),) = redis.xrevrange(key, count=1)
        redis.xadd(key, cast(Any, started), id=f"{EventId.parse(last.decode()).epoch + 1}-0")

    async def reconnect(self, url: str, num_between: int) -> None:
        """Break the connection with writes in flight; meanwhile the engine makes `num_between` tokens per request."""
        cast(Link, self.session.link).drop("broken")
        for running in self.roster:
            running.detach()
        await self.session.close()
        self.publisher.tokens.forget()
        for _ in range(num_between):
            self.compute(*self.left)
            await asyncio.sleep(0)
        self.session = await open_session(url, self.producer, reconnected=True)
        for running in self.roster:
            await self.attach(running)

    @property
    def left(self) -> list[Computed]:
        """Return the requests that the engine still computes."""
        return [one for one in self.requests if not one.finished]

    async def settle(self) -> None:
        """Publish until nothing is left to do."""
        while True:
            await asyncio.sleep(0)
            await self.publisher.tokens.settled()
            if not self.publisher.wake.is_set():
                return
            await self.publish()

    def fold(self, request: Computed) -> Fold:
        """Return what a reader has received so far."""
        fold = Fold()
        for raw_id, fields in self.producer.redis.xrange(self.producer.keys.reply(request.running.id)):
            fold.feed(EventId.parse(raw_id.decode()), decode_event(fields))
        return fold

    def _published(self, num_events: int) -> None:
        self.num_published += num_events


@pytest.fixture
async def stage(session: Session, producer: Producer) -> Stage:
    return Stage(session, producer)


async def test_a_plain_request_streams_from_the_second_token_on(stage: Stage) -> None:
    plain, told = await stage.begin(), await stage.begin(logprobs=1)
    for position in range(4):
        assert (plain.running.stream is not None) == (position > 0)
        stage.compute(plain)
        stage.compute(told)
        await stage.settle()
        assert [len(stage.fold(one).tokens[0]) for one in (plain, told)] == [position + 1] * 2
    assert told.running.stream is None
    assert stage.num_published == stage.num_delivered == 8


async def test_no_task_is_woken_for_tokens_of_streams(stage: Stage) -> None:
    request = await stage.begin()
    stage.compute(request)
    await stage.settle()
    for _ in range(3):
        stage.compute(request)
        await asyncio.sleep(0)
        assert not stage.publisher.wake.is_set()
    await stage.publisher.tokens.settled()
    assert stage.fold(request).tokens[0] == request.tokens
    assert stage.num_published == stage.num_delivered


async def test_tokens_from_before_the_stream_go_first(stage: Stage) -> None:
    request = await stage.begin()
    await stage.compute_around_the_opening(request)
    await stage.settle()
    assert stage.fold(request).tokens[0] == request.tokens
    assert stage.num_published == stage.num_delivered


@pytest.mark.parametrize("num_behind", [0, 1, 2])
async def test_a_cancel_ends_a_stream_after_the_write_in_flight(stage: Stage, num_behind: int) -> None:
    request, other = await stage.begin(), await stage.begin()
    stage.compute(request, other)
    await stage.settle()
    stage.compute(request, other)
    await asyncio.sleep(0)
    request.running.fail(ErrorCode.CANCELLED, "cancelled")
    stage.publisher.mark([request.running])
    for _ in range(num_behind):
        stage.compute(request, other)
    await stage.settle()
    fold = stage.fold(request)
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.CANCELLED
    assert fold.tokens[0] == request.tokens[: len(fold.tokens[0])]
    assert len(fold.tokens[0]) >= 2
    assert stage.fold(other).tokens[0] == other.tokens
    assert request.running.closed


async def test_a_refused_stream_continues_in_a_new_epoch(stage: Stage) -> None:
    request = await stage.begin()
    stage.compute(request)
    await stage.settle()
    stage.fence(request)
    stage.compute(request)
    stage.compute(request)
    await stage.settle()
    stage.compute(request)
    await stage.settle()
    assert request.running.stream is not None
    assert stage.fold(request).tokens[0] == request.tokens
    assert stage.num_published == stage.num_delivered


async def test_an_earlier_refusal_does_not_apply_to_a_new_epoch(stage: Stage) -> None:
    """The connection was lost before the refusal was read."""
    request = await stage.begin()
    running = request.running
    stage.compute(request)
    await stage.settle()
    stage.fence(request)
    stage.compute(request)
    await asyncio.sleep(0)
    await stage.publisher.tokens.settled()
    running.detach()
    await stage.attach(running)
    log = running.log
    await stage.settle()
    assert running.log is log
    assert stage.fold(request).tokens[0] == request.tokens


async def test_a_streams_position_is_known_when_its_epoch_ends(stage: Stage) -> None:
    request = await stage.begin()
    for _ in range(10):
        stage.compute(request)
        await stage.settle()
    stage.lifecycle.epoch_over(request.running, Outcome.LEASE_LOST)
    assert request.running.num_logged == 10


async def test_a_restored_request_has_no_gap(stage: Stage) -> None:
    """Redis loses the request while a token from before the stream still waits, and the next one follows."""
    request = await stage.begin()
    running = request.running
    await stage.compute_around_the_opening(request)
    stage.producer.redis.delete(stage.producer.keys.requests("normal"))
    await stage.session.queue.ensure_groups()
    stage.roster.remove(running)
    await stage.publish()
    restorer = Restorer(60_000, frozenset())
    restorer.add(running)
    await restorer.step(stage.session)
    (logged,) = stage.fold(request).tokens
    assert logged == request.tokens[: len(logged)]
    assert stage.num_published == stage.num_delivered
    assert stage.producer.redis.xlen(stage.producer.keys.requests("normal")) == 1


class Owners(dict[str, Any]):
    """Maps engine output to its owner; records that it was asked."""

    asked = False

    def get(self, key: str, default: Any = None) -> Any:
        self.asked = True
        return super().get(key, default)


class Raced(list[Any]):
    """An iteration's output; the event loop runs once the owner of the first event has been looked up."""

    def __init__(self, events: Iterable[TokenEvent], owners: Owners, between: Callable[[], object]) -> None:
        super().__init__(events)
        self._owners = owners
        self._between = between

    def __iter__(self) -> Iterator[Any]:
        for number, event in enumerate(super().__iter__()):
            if number == 1 and self._owners.asked:
                self._between()
            yield event


async def test_two_tokens_of_an_iteration_keep_their_order_while_a_stream_opens(stage: Stage) -> None:
    request = await stage.begin()
    stage.compute(request)
    await stage.settle()
    running = request.running
    running.close_stream()
    events = [TokenEvent(request.engine_id, position, 10 + position) for position in (1, 2)]
    stage.roster.by_engine_id = owners = Owners(stage.roster.by_engine_id)
    stage.outbox.deliver(Raced(events, owners, lambda: running.open_stream(stage.publisher.tokens)))
    assert running.stream is not None
    await stage.settle()
    assert stage.fold(request).tokens[0] == [*request.tokens, 11, 12]


@pytest.mark.parametrize("loses_connections", [False, True])
@pytest.mark.parametrize("seed", range(12))
async def test_any_order_of_events(stage: Stage, redis_server: RedisServer, seed: int, loses_connections: bool) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        await stage.begin()
    publishing: asyncio.Task[None] | None = None
    cancelled = chance.choice(stage.requests)
    for _ in range(300):
        left = stage.left
        match chance.randrange(9):
            case 0 | 1 | 2 if left:
                stage.compute(*chance.sample(left, chance.randint(1, len(left))), finish=chance.random() < 0.01)
            case 3:
                await asyncio.sleep(0)
            case 4:
                await asyncio.sleep(chance.random() / 1000)
            case 5 | 6 if publishing is None or publishing.done():
                if publishing is not None:
                    publishing.result()
                publishing = asyncio.create_task(stage.publish())
            case 7 if chance.random() < 0.2 and left:
                stage.fence(chance.choice(left))
            case 7 if chance.random() < 0.02 and not cancelled.finished:
                cancelled.finished = True
                cancelled.running.fail(ErrorCode.CANCELLED, "cancelled")
                stage.publisher.mark([cancelled.running])
            case 8 if loses_connections and chance.random() < 0.1:
                if publishing is not None:
                    publishing.cancel()
                    await asyncio.gather(publishing, return_exceptions=True)
                    publishing = None
                await stage.reconnect(redis_server.url, chance.randrange(3))
    if publishing is not None:
        await publishing
    if stage.left:
        stage.compute(*stage.left, finish=True)
    if chance.random() < 0.5:  # as at the end of a drain
        await asyncio.sleep(0)
        await stage.take_all()
    await stage.settle()
    for request in stage.requests:
        fold, error = stage.fold(request), request.running.error
        assert fold.terminal is not None
        assert fold.tokens[0] == request.tokens[: len(fold.tokens[0])]
        assert error is not None or fold.tokens[0] == request.tokens
    assert stage.num_published == stage.num_delivered
