"""A late follower of a reply sees all of it, whatever others have seen before."""

import pytest

from orcastream.broker.errors import ReplyConflict
from orcastream.broker.loss import Watch
from orcastream.schemas.events import Run
from tests.broker.conftest import Begin, MakeReader
from tests.broker.following import Seen, expected, follow, follow_until, resume, tokens_seen
from tests.redis_server import RedisServer

WATCH = Watch("r1", "default")


async def test_a_late_follower_gets_a_running_reply_in_full(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    worker, job = await begin(2)
    reader = await make_reader(redis_server.url)
    first = reader.subscribe(WATCH)
    seen = await follow_until(first, Seen(), tokens_seen(2))
    await worker.step(job)
    await follow_until(first, seen, tokens_seen(3))
    late = reader.subscribe(WATCH)
    of_late = await follow_until(late, Seen(), tokens_seen(3))
    await worker.step(job)
    await follow_until(first, seen, tokens_seen(4))
    third = reader.subscribe(WATCH)
    await worker.end(job, [worker.next_run(job)])
    for subscription, so_far in ((first, seen), (late, of_late), (third, Seen())):
        await follow_until(subscription, so_far, lambda seen: False)
        assert (so_far.tokens[0], so_far.workers, len(so_far.terminals)) == (expected(5), ["w1"], 1)
    assert seen.resume_id == of_late.resume_id


async def test_a_late_follower_gets_an_ended_reply_in_full(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    worker, job = await begin(2)
    await worker.end(job, [worker.next_run(job)])
    reader = await make_reader(redis_server.url)
    first = reader.subscribe(WATCH)
    assert (await follow(first)).tokens[0] == expected(3)
    late = await follow(reader.subscribe(WATCH))
    assert (late.tokens[0], late.workers, len(late.terminals)) == (expected(3), ["w1"], 1)


async def test_a_resuming_follower_gets_the_rest(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    worker, job = await begin(2)
    reader = await make_reader(redis_server.url)
    first = reader.subscribe(WATCH)
    seen = await follow_until(first, Seen(), tokens_seen(2))
    at_two = seen.resume_id
    await worker.step(job)
    await follow_until(first, seen, tokens_seen(3))
    late = resume(reader.subscribe(WATCH), at_two)
    wrong = resume(reader.subscribe(WATCH), "2-00000000")
    await worker.end(job)
    runs = [run async for update in late for run in update.runs]
    assert [(run.position, run.tokens) for run in runs] == [(2, tuple(expected(3, start=2)))]
    with pytest.raises(ReplyConflict):
        await follow(wrong)


async def test_log_probabilities_are_kept_event_by_event(
    redis_server: RedisServer, make_reader: MakeReader, begin: Begin
) -> None:
    worker, job = await begin(0)
    reader = await make_reader(redis_server.url)
    first = reader.subscribe(WATCH)
    runs = [Run(0, position, (position * 10,), ([-0.5, []],)) for position in range(2)]
    for run in runs:
        await job.log.append([run])
        job.tokens[0].extend(run.tokens)
    await follow_until(first, Seen(), tokens_seen(2))
    late = reader.subscribe(WATCH)
    await worker.end(job)
    assert [run async for update in late for run in update.runs] == runs
