"""One id for requests to two models: they have one reply log, which belongs to the request that began it."""

import pytest

from orcastream.broker.ending import Ender
from orcastream.broker.errors import IdInUse, Unusable
from orcastream.broker.letters import newest_letters
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Watch
from orcastream.broker.queue import RequestQueue
from orcastream.broker.reader import ReplyReader
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.broker.conftest import Begin
from tests.broker.following import follow
from tests.broker.scripted import RETENTION_MS, ScriptedWorker, enqueue, make_request
from tests.redis_server import RedisServer

OTHER = Keys("other")


@pytest.mark.parametrize("ended", [False, True])
async def test_the_later_request_is_set_aside_and_disturbs_nothing(
    redis_server: RedisServer, link: Link, begin: Begin, ended: bool
) -> None:
    worker, job = await begin(num_tokens=2)
    if ended:
        await worker.end(job)
    log = await link.call("XRANGE", worker.keys.reply(job.request.id), "-", "+")
    request = make_request(job.request.id)
    await enqueue(link, OTHER, request)
    rival = await ScriptedWorker(redis_server.url, OTHER, "w2").connect()
    claimed = (await rival.claimer.new(1))[0]
    for is_new in (True, False):
        with pytest.raises(Unusable, match="belongs to a request for the model demo"):
            await rival.attach(claimed, is_new=is_new)
    ender = Ender(OTHER, "w2", retention_ms=RETENTION_MS)
    with pytest.raises(Unusable):
        await ender.end(link, request.id, ref=claimed.ref, code=ErrorCode.EXPIRED, message="late", request=request)
    await ender.set_aside(link, claimed.ref, ErrorCode.DEAD_LETTER, "no place for its answer")
    if not ended:
        with pytest.raises(Unusable):
            await LossCheck(OTHER, "g", retention_ms=RETENTION_MS).check(
                link, Watch(request.id, "default", None, request)
            )
    assert await link.call("XRANGE", worker.keys.reply(job.request.id), "-", "+") == log
    assert [letter.request_id async for letter in newest_letters(link, OTHER)] == [request.id]
    assert await RequestQueue(link, OTHER).depth() == 0
    await rival.close()
    if not ended:
        await worker.end(job)


async def test_no_reader_of_the_other_model_is_shown_the_answer(redis_server: RedisServer, begin: Begin) -> None:
    worker, job = await begin(num_tokens=2)
    await worker.end(job)
    reader = ReplyReader(redis_server.url, OTHER, "gateway", retention_ms=RETENTION_MS)
    await reader.start()
    try:
        with pytest.raises(IdInUse):
            await follow(reader.subscribe(Watch(job.request.id, "default")))
    finally:
        await reader.close()
