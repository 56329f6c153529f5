"""Running a bulk job: a window at a time, by any number of runners, through failures."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from orcastream.broker.jobs.job import Job, JobIncomplete, JobLine, JobLost
from orcastream.broker.jobs.runner import JobRunner, LineResult
from orcastream.broker.jobs.runner_lease import RunnerLease
from orcastream.broker.link import Link
from orcastream.broker.presence import new_process_name
from orcastream.schemas.keys import Keys
from tests.broker.jobs.conftest import ORDER, MakeJob, results_of, sealed
from tests.redis_server import RedisServer


class Answers:
    """Answers on command, and knows how many requests wait at once."""

    def __init__(self, *, open_at_once: bool = True) -> None:
        self.asked: Counter[int] = Counter()
        self.withdrawn: list[int] = []
        self.waiting = self.most_waiting = 0
        self.gate = asyncio.Event()
        self.someone_waits = asyncio.Condition()
        if open_at_once:
            self.gate.set()

    async def answer(self, line: JobLine) -> LineResult:
        self.asked[line.number] += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        async with self.someone_waits:
            self.someone_waits.notify_all()
        await self.gate.wait()
        await asyncio.sleep(0)
        self.waiting -= 1
        return LineResult(b"answer to " + line.body, failed=line.number % 10 == 0)

    async def withdraw(self, line: JobLine) -> None:
        self.withdrawn.append(line.number)

    def cancelled(self, line: JobLine) -> LineResult:
        return LineResult(b"no answer to " + line.body, failed=True)

    async def until_waiting(self, count: int) -> None:
        async with self.someone_waits:
            await self.someone_waits.wait_for(lambda: self.waiting >= count)


def runner_of(job: Job, answers: Answers, *, window: int) -> JobRunner:
    return JobRunner(job, answers, RunnerLease(job, new_process_name(), lease_ms=1000), window=window)


def expected(count: int) -> dict[int, bytes]:
    return {number: b"answer to line %d" % number for number in range(1, count + 1)}


async def test_every_line_is_answered_a_window_at_a_time(redis_server: RedisServer, make_job: MakeJob) -> None:
    job, answers = await sealed(make_job(redis_server.url), 250), Answers(open_at_once=False)
    running = asyncio.create_task(runner_of(job, answers, window=7).run())
    await answers.until_waiting(7)
    answers.gate.set()
    await running
    assert answers.most_waiting == 7
    assert set(answers.asked.values()) == {1}
    assert await results_of(job) == expected(250)
    progress = await job.progress()
    assert (progress.completed, progress.failed, progress.ended) == (225, 25, True)


async def test_another_runner_continues_where_one_was_stopped(redis_server: RedisServer, make_job: MakeJob) -> None:
    job, answers = await sealed(make_job(redis_server.url), 30), Answers(open_at_once=False)
    ended = asyncio.create_task(runner_of(job, answers, window=5).run())
    await answers.until_waiting(5)
    ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended
    again = Answers()
    await runner_of(make_job(redis_server.url), again, window=5).run()
    assert set(again.asked) == set(range(1, 31))
    assert await results_of(job) == expected(30)
    await runner_of(job, again, window=5).run()
    assert set(again.asked.values()) == {1}, "a line with a result is not requested again"


async def test_two_runners_at_once_produce_one_result_per_line(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = await sealed(make_job(redis_server.url), 120)
    runners = [runner_of(make_job(redis_server.url), Answers(), window=10) for _ in range(2)]
    await asyncio.gather(*(runner.run() for runner in runners))
    assert await results_of(job) == expected(120)
    assert (await job.progress()).ended


async def test_redis_restarts_meanwhile(own_redis: Callable[..., RedisServer], make_job: MakeJob) -> None:
    server = own_redis(aof="always")
    job, answers = await sealed(make_job(server.url), 60), Answers(open_at_once=False)
    running = asyncio.create_task(runner_of(job, answers, window=20).run())
    await answers.until_waiting(20)
    await asyncio.to_thread(server.kill)
    answers.gate.set()
    await asyncio.to_thread(server.start)
    await running
    assert await results_of(job) == expected(60)


async def test_lost_results_are_computed_again(own_redis: Callable[..., RedisServer], make_job: MakeJob) -> None:
    server = own_redis(aof="always")
    job = await sealed(make_job(server.url), 10)
    mark = server.aof_size()

    class LoseResultsOnce(Answers):
        async def answer(self, line: JobLine) -> LineResult:
            if line.number == 10 and self.asked[10] == 0:
                await asyncio.to_thread(server.lose_writes_after, mark)
            return await super().answer(line)

    answers = LoseResultsOnce()
    await runner_of(job, answers, window=1).run()
    assert await results_of(job) == expected(10)
    assert answers.asked == {number: 1 if number == 10 else 2 for number in range(1, 11)}


async def test_an_incomplete_job_is_not_run(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = make_job(redis_server.url)
    await job.create(ORDER)
    with pytest.raises(JobLost):
        await runner_of(job, Answers(), window=1).run()


async def test_lost_lines_are_no_end(redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys) -> None:
    job, answers = await sealed(make_job(redis_server.url), 20), Answers(open_at_once=False)
    running = asyncio.create_task(runner_of(job, answers, window=3).run())
    await answers.until_waiting(3)
    await link.call("DEL", keys.job_lines("job"))
    answers.gate.set()
    with pytest.raises(JobIncomplete):
        await running
    assert not (await job.progress()).ended


async def test_lost_results_are_no_end(redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys) -> None:
    job, answers = await sealed(make_job(redis_server.url), 20), Answers(open_at_once=False)
    assert await job.record(1, b"a result", failed=False)
    running = asyncio.create_task(runner_of(job, answers, window=3).run())
    await answers.until_waiting(3)
    assert await link.call("DEL", keys.job_results("job")) == 1
    answers.gate.set()
    with pytest.raises(JobIncomplete):
        await running
    assert len(await results_of(job)) == 19


async def test_an_exception_from_an_answer_ends_only_the_run(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = await sealed(make_job(redis_server.url), 20)

    class Fails(Answers):
        async def answer(self, line: JobLine) -> LineResult:
            if line.number == 7:
                raise ZeroDivisionError
            return await super().answer(line)

    with pytest.raises(ZeroDivisionError):
        await runner_of(job, Fails(), window=3).run()
    await runner_of(job, Answers(), window=3).run()
    assert await results_of(job) == expected(20)


async def test_requests_of_a_wider_runner_are_withdrawn(redis_server: RedisServer, make_job: MakeJob) -> None:
    job, answers = await sealed(make_job(redis_server.url), 20), Answers(open_at_once=False)
    killed = asyncio.create_task(runner_of(job, answers, window=8).run())
    await answers.until_waiting(8)
    killed.cancel()
    await asyncio.wait([killed])
    await job.cancel()
    lease = RunnerLease(job, new_process_name(), lease_ms=60_000)
    assert await lease.take()
    await JobRunner(job, answers, lease, window=2).run()
    assert answers.withdrawn == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (await job.progress()).ended


async def test_a_job_stays_cancelled_where_redis_loses_that_while_it_ends(
    own_redis: Callable[..., RedisServer], make_job: MakeJob
) -> None:
    """Otherwise it would count as done, with lines that say that it was canceled."""
    server = own_redis(aof="always")
    job = await sealed(make_job(server.url), 3)
    mark = server.aof_size()
    await job.cancel()

    class LoseTheCancel(Answers):
        async def withdraw(self, line: JobLine) -> None:
            if not self.withdrawn:
                await asyncio.to_thread(server.lose_writes_after, mark)
            await super().withdraw(line)

    lease = RunnerLease(job, new_process_name(), lease_ms=60_000)
    assert await lease.take()
    await JobRunner(job, LoseTheCancel(open_at_once=False), lease, window=2).run()
    progress = await job.progress()
    assert (progress.failed, progress.ended, progress.cancelling) == (3, True, True)


async def test_a_cancelled_job_ends_without_more_answers(redis_server: RedisServer, make_job: MakeJob) -> None:
    job, answers = await sealed(make_job(redis_server.url), 20), Answers(open_at_once=False)
    for number in (1, 2):
        await job.record(number, b"answer to line %d" % number, failed=False)
    lease = RunnerLease(job, "runner", lease_ms=300)
    assert await lease.take()
    running = asyncio.create_task(lease.keep(JobRunner(job, answers, lease, window=4).run()))
    await answers.until_waiting(4)
    await make_job(redis_server.url).cancel()
    assert await running
    assert answers.withdrawn == [3, 4, 5, 6], "possibly in flight: the first remaining lines"
    refused = {number: b"no answer to line %d" % number for number in range(3, 21)}
    assert await results_of(job) == expected(2) | refused
    progress = await job.progress()
    assert (progress.completed, progress.failed, progress.ended, progress.cancelling) == (2, 18, True, True)


async def test_one_runner_has_a_job_until_it_stops(redis_server: RedisServer, make_job: MakeJob) -> None:
    job = await sealed(make_job(redis_server.url), 1)
    first, second = (RunnerLease(make_job(redis_server.url), name, lease_ms=60_000) for name in ("first", "second"))

    async def wait() -> None:
        await asyncio.Event().wait()

    assert await first.take()
    keeping = asyncio.create_task(first.keep(wait()))
    assert not await second.take()
    await job.lease("second", 0)
    assert not await second.take(), "a runner without the job cannot release it"
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert await second.take(), "a runner that stops releases it"
    assert not await first.take()


async def test_a_runner_that_slept_too_long_releases_the_job(
    redis_server: RedisServer, make_job: MakeJob, link: Link, keys: Keys
) -> None:
    lease = RunnerLease(await sealed(make_job(redis_server.url), 1), "first", lease_ms=300)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await lease.take()
    keeping = asyncio.create_task(lease.keep(work()))
    await begun.wait()
    await link.call("SET", keys.job_runner("job"), "second")
    assert not await keeping
    assert ended.is_set()
    assert await link.call("GET", keys.job_runner("job")) == b"second"
