"""A bulk job in Redis: each line has one result, even if lines or results are added twice."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from orcastream.broker.errors import LinkLost, Unwritable
from orcastream.broker.jobs.job import FIRST_RESULT, JobLine, JobLost, OtherJob, list_jobs, see_jobs
from orcastream.broker.jobs.order import JobProgress
from orcastream.broker.link import Link
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys
from tests.broker.jobs.conftest import FAR_MS, ORDER, MakeJob, lines_of, results_of, sealed
from tests.redis_server import RedisServer


async def test_lines_wait_until_they_have_results(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = await sealed(make_job(redis_server.url), 5)
    assert await job.lines_after(0, 3) == lines_of(5)[:3]
    assert await job.lines_after(3, 10) == lines_of(5)[3:]
    assert await job.record(4, b"four", failed=False)
    assert await job.record(2, b"two", failed=True)
    assert [line.number for line in await job.lines_after(0, 10)] == [1, 3, 5]
    progress = await job.progress()
    assert (progress.total, progress.completed, progress.failed, progress.left) == (5, 1, 1, 3)
    assert not progress.ended
    first, second = await job.results_after(FIRST_RESULT, 10)
    assert (first.number, first.body, second.number, second.body) == (4, b"four", 2, b"two")
    assert await job.results_after(first.cursor, 10) == [second]
    for number in (1, 3, 5):
        assert await job.record(number, b"", failed=False)
    assert (await job.progress()).ended


async def test_the_first_result_of_a_line_is_kept(redis_server: RedisServer, make_job: MakeJob) -> None:
    job, other = await sealed(make_job(redis_server.url), 2), make_job(redis_server.url)
    assert await job.record(1, b"first", failed=False)
    assert not await other.record(1, b"second", failed=True)
    assert not await job.record(3, b"no such line", failed=False)
    assert await results_of(other) == {1: b"first"}
    progress = await other.progress()
    assert (progress.completed, progress.failed) == (1, 0)


async def test_lines_may_be_added_again(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = make_job(redis_server.url)
    await job.create(ORDER)
    assert await job.last_line() == 0
    await job.add_lines(lines_of(3), ORDER)
    await job.add_lines(lines_of(5), ORDER)
    assert await job.last_line() == 5
    assert (await job.progress()).total is None
    assert await job.seal(5)
    assert await job.record(1, b"", failed=False)
    assert await job.seal(5), "it stays sealed, even if the same lines are added a moment later"
    assert await job.lines_after(0, 10) == lines_of(5)[1:]


async def test_a_job_with_a_missing_line_is_not_sealed(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = make_job(redis_server.url)
    await job.create(ORDER)
    await job.add_lines([JobLine(1, b"a"), JobLine(3, b"c")], ORDER)
    assert not await job.seal(3)
    assert (await job.last_line(), (await job.progress()).total) == (0, None)


async def test_the_first_order_counts(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = make_job(redis_server.url)
    assert await job.create(ORDER) == ORDER
    assert await make_job(redis_server.url).create(replace(ORDER, deadline_ms=1, tenant="blue")) == ORDER
    assert await job.order() == ORDER
    with pytest.raises(OtherJob):
        await job.create(replace(ORDER, source="another digest"))


async def test_a_missing_job_is_reported(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = make_job(redis_server.url, "nothing")
    for asking in (job.order(), job.progress(), job.seal(1), job.record(1, b"", failed=False)):
        with pytest.raises(JobLost, match="the job 'nothing' is missing"):
            await asking
    with pytest.raises(InvalidRequest, match=r"job: got 'a\.b', allowed: "):
        make_job(redis_server.url, "a.b")


async def test_all_of_it_expires_and_can_be_deleted(
    redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys
) -> None:
    job = await sealed(make_job(redis_server.url, "one"), 2)
    await job.record(1, b"", failed=False)
    parts = [keys.job("one"), keys.job_lines("one"), keys.job_results("one")]
    now_ms = await link.server_time_ms()
    for part in parts:
        assert abs(await link.call("PTTL", part) + now_ms - FAR_MS) < 60_000
    await sealed(make_job(redis_server.url, "two"), 1)
    assert await list_jobs(link, keys) == ["one", "two"]
    await job.delete()
    await job.delete()
    assert await list_jobs(link, keys) == ["two"]
    assert await link.call("EXISTS", *parts) == 0


async def test_expired_jobs_leave_the_list(
    redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys
) -> None:
    await make_job(redis_server.url, "old").create(replace(ORDER, kept_until_ms=FAR_MS - 1))
    await make_job(redis_server.url, "new").create(replace(ORDER, created_ms=FAR_MS - 1))
    assert await list_jobs(link, keys) == ["new"]


async def test_out_of_memory_a_result_is_stored_whole_or_not_at_all(
    own_redis: Callable[..., RedisServer], make_job: MakeJob
) -> None:
    server = own_redis()
    job = await sealed(make_job(server.url, patience_s=0), 2)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        with pytest.raises(OutOfMemoryError):
            client.set("filling", "x" * 1024 * 1024)
        with pytest.raises(ResponseError):
            await job.record(1, b"one", failed=False)
        assert [line.number for line in await job.lines_after(0, 10)] == [1, 2]
        assert await results_of(job) == {}
        client.config_set("maxmemory", "0")
    assert await job.record(1, b"one", failed=False)
    assert await results_of(job) == {1: b"one"}


async def test_lines_of_a_submit_that_ran_out_of_memory_expire(
    own_redis: Callable[..., RedisServer], make_job: MakeJob, keys: Keys
) -> None:
    server = own_redis(options=["--maxmemory", "8mb"])
    job = make_job(server.url, patience_s=0)
    await job.create(ORDER)
    with pytest.raises(Unwritable):
        await job.add_lines([JobLine(number, b"x" * 200_000) for number in range(1, 100)], ORDER)
    with server.client() as client:
        assert client.xlen(keys.job_lines("job")) > 0
        assert client.pttl(keys.job_lines("job")) > 0


async def test_a_job_expires_if_its_creator_is_killed_at_any_point(
    redis_server: RedisServer, link: Link, keys: Keys, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_job(redis_server.url, "another").create(ORDER)  # from here on the server knows all scripts
    job = make_job(redis_server.url, patience_s=0)
    await job.last_line()
    send = Link.send

    def break_behind(broken: Link, *args: Any) -> Any:
        answer = send(broken, *args)
        broken.drop("killed")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Link, "send", break_behind)
        with pytest.raises(LinkLost):
            await job.create(ORDER)
    while not await link.call("EXISTS", keys.job("job")):  # noqa: ASYNC110 (the state is Redis')
        await asyncio.sleep(0.01)
    assert await link.call("PTTL", keys.job("job")) > 0


async def test_many_jobs_are_listed_even_if_one_is_damaged(
    redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys
) -> None:
    job = await sealed(make_job(redis_server.url, "runs"), 2)
    assert await job.lease("runner", 60_000)
    await make_job(redis_server.url, "new").create(ORDER)
    newer, words = '{"unknown": 1}', json.dumps({**asdict(ORDER), "created_ms": "soon"})
    unreadable = {"newer": newer, "damaged": "{", "list": "[]", "words": words}
    for job_id, order in unreadable.items():
        await link.call("HSET", keys.job(job_id), "order", order)
    await link.call("HSET", keys.job("lacking"), "total", 1)
    await link.call("SET", keys.job("text"), "no hash")
    seen = await see_jobs(link, keys, ["runs", *unreadable, "lacking", "text", "gone", "new"])
    assert seen.pop("runs") == (ORDER, await job.progress(), True)
    assert seen.pop("new") == (ORDER, JobProgress(None, 0, 0), False)
    assert set(seen) == {*unreadable, "lacking", "text"}
    assert all(isinstance(one, ValueError) for one in seen.values())
    with pytest.raises(InvalidRequest, match="source: got None"):
        await make_job(redis_server.url, "newer").order()
    assert await see_jobs(link, keys, []) == {}


async def test_large_results_are_read_in_small_pages(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = await sealed(make_job(redis_server.url), 5)
    sizes = [10, 700_000, 700_000, 3_000_000, 10]
    for number, size in enumerate(sizes, start=1):
        assert await job.record(number, b"x" * size, failed=False)
    cursor, pages = FIRST_RESULT, list[list[int]]()
    while page := await job.results_after(cursor, 100):
        cursor = page[-1].cursor
        pages.append([result.number for result in page])
        assert [len(result.body) for result in page] == [sizes[result.number - 1] for result in page]
    assert pages == [[1, 2, 3], [4], [5]]
    assert [result.number for result in await job.results_after(FIRST_RESULT, 2)] == [1, 2]
