"""Results of writes: new output takes back the attempt counted at the start; a refused cleanup is left to an attach."""

from orcastream.broker.attach import Ended
from orcastream.engine import PromptEvent, TokenEvent
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import GROUP
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.publisher import Publisher
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from tests.redis_server import one_server
from tests.worker.claimed_here import claim_and_attach, session
from tests.worker.producer import Producer

__all__ = ["session"]

pytestmark = one_server("embedded")


async def begin(session: Session, producer: Producer) -> Running:
    """A request with prompt log probabilities that runs alone, as an attempt that counts."""
    producer.post([5, 6, 7], max_tokens=4, prompt_logprobs=1)
    running = await claim_and_attach(session)
    running.blamed = running.counted = True
    session.leases.count_attempt(running.ref)
    return running


async def deliveries(session: Session, running: Running) -> int:
    key = session.keys.requests(running.ref.priority_class)
    ((*_, number),) = await session.link.call("XPENDING", key, GROUP, "-", "+", "1")
    return int(number)


async def test_the_first_prompt_piece_or_token_takes_back_the_attempt(session: Session, producer: Producer) -> None:
    running = await begin(session, producer)
    publisher = Publisher(Lifecycle(session.keys, "w1", WorkerMetrics(session.keys.model)), lambda _: None)
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
        assert (running.blamed, running.counted, await deliveries(session, running)) == (False, False, 1)


async def test_where_the_cleanup_is_refused_the_next_attach_does_it(session: Session, producer: Producer) -> None:
    """A node of a cluster refuses scripts while a slot moves: the session, and so all other requests, continue."""
    producer.post([5, 6, 7], max_tokens=4)
    running = await claim_and_attach(session)
    publisher = Publisher(Lifecycle(session.keys, "w1", WorkerMetrics(session.keys.model)), lambda _: None)
    running.fail(ErrorCode.CANCELLED, "told to")
    publisher.mark([running])
    stream = session.keys.requests(running.ref.priority_class)
    await session.link.call_many([("RENAME", stream, "aside"), ("SET", stream, "no stream")])
    flushed = await publisher.flush(session)
    assert (flushed.ended, flushed.unwritable, running.log) == ([], [running], None)
    await session.link.call("RENAME", "aside", stream)
    assert isinstance(await session.attach(running), Ended)
    assert await session.queue.depth() == 0
