"""The complete path of a request through the broker, without faults."""

from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.queue import RequestQueue
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.scripted import enqueue, make_request
from tests.redis_server import RedisServer


async def test_from_enqueue_to_terminal(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(redis_server.url)
    worker = await make_worker(redis_server.url, "w1")
    request = make_request()
    enqueued = await enqueue(link, keys, request)
    assert (enqueued.duplicate, enqueued.depth) == (False, 1)
    subscription = reader.subscribe(Watch(request.id, "default", enqueued.entry, request))
    job = await worker.take()
    for _ in range(5):
        await worker.step(job)
    await worker.end(job, [worker.next_run(job, 3)])
    updates = [update async for update in subscription]
    assert updates[0].started is not None
    assert updates[0].started.worker == "w1"
    assert [token for update in updates for run in update.runs for token in run.tokens] == list(range(0, 80, 10))
    assert updates[-1].terminal is not None
    assert updates[-1].resume_id.startswith("8-")
    assert await RequestQueue(link, keys).depth() == 0
    ttl = await link.call("PTTL", keys.reply(request.id))
    assert 0 < ttl <= 60_000
