"""Gets every line of a bulk job answered, a window of lines at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from orcastream.broker.jobs.job import Job, JobLine, JobLost
from orcastream.broker.jobs.order import WINDOW
from orcastream.broker.jobs.runner_lease import RunnerLease

_PAGE: Final = 100


class LineResult(NamedTuple):
    """The outcome of a line: its result as stored, and whether it is an error."""

    body: bytes
    failed: bool


class Answers(Protocol):
    """Answers the lines of one job, under the ids of `Job.request_id`. Exceptions end the run, not the job."""

    async def answer(self, line: JobLine) -> LineResult:
        """Get a line answered."""
        ...

    async def withdraw(self, line: JobLine) -> None:
        """Cancel the requests of a line, posted by this process or another, if there are any."""
        ...

    def cancelled(self, line: JobLine) -> LineResult:
        """Return the result of a line that was not answered when the job was cancelled."""
        ...


class JobRunner:
    """Runs a job. Any number of runners, one after another or at once, on any machines, yield one result per line: the
    requests have ids that follow from the lines, and the first of two results is kept.
    """

    def __init__(
        self,
        job: Job,
        answers: Answers,
        lease: RunnerLease,
        *,
        window: int,
        on_result: Callable[[LineResult], None] = lambda _: None,
    ) -> None:
        """`window`: most requests of the job waiting and running at once."""
        self._job = job
        self._answers = answers
        self._lease = lease
        self._window = window
        self._on_result = on_result

    async def run(self) -> None:
        """Return once every line has its result; run under the lease. Raises JobLost, JobIncomplete if lines are gone
        that have no result, and what `Job` and answers raise.

        If Redis restarts without its newest writes, some lines lack their results again, so this repeats until no line
        does.
        """
        await self._job.mark(f"{WINDOW}{self._window}", 1)
        await self._until_cancelled(self._until_none_is_left(self._answer_one))
        if self._lease.cancelled.is_set():
            window = (await self._job.progress()).widest_window
            for line in await self._job.lines_after(0, window):  # lines begin in order: no other can be in flight
                await self._answers.withdraw(line)
            await self._until_none_is_left(self._cancel_one, cancelled=True)

    async def _until_cancelled(self, work: Awaitable[None]) -> None:
        working, cancelled = asyncio.ensure_future(work), asyncio.ensure_future(self._lease.cancelled.wait())
        try:
            await asyncio.wait((working, cancelled), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, cancelled):
                task.cancel()
            await asyncio.gather(working, cancelled, return_exceptions=True)

    async def _until_none_is_left(
        self, deal_with: Callable[[JobLine], Awaitable[LineResult]], *, cancelled: bool = False
    ) -> None:
        while True:
            if (await self._job.progress()).total is None:
                raise JobLost(self._job.id)
            if cancelled:
                await self._job.cancel()  # Redis may have lost that, and must not lose it before the results
            if not await self._deal_with_all(deal_with):
                await self._job.check_lines()
                return

    async def _deal_with_all(self, deal_with: Callable[[JobLine], Awaitable[LineResult]]) -> int:
        """Process every line without a result; return how many there were."""
        places = asyncio.Semaphore(self._window)
        last = count = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                while lines := await self._job.lines_after(last, _PAGE):
                    for line in lines:
                        await places.acquire()
                        tasks.create_task(self._keep(line, deal_with)).add_done_callback(lambda _: places.release())
                    last, count = lines[-1].number, count + len(lines)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return count

    async def _keep(self, line: JobLine, deal_with: Callable[[JobLine], Awaitable[LineResult]]) -> None:
        result = await deal_with(line)
        if await self._job.record(line.number, result.body, failed=result.failed):
            self._on_result(result)

    async def _answer_one(self, line: JobLine) -> LineResult:
        return await self._answers.answer(line)

    async def _cancel_one(self, line: JobLine) -> LineResult:
        return self._answers.cancelled(line)
