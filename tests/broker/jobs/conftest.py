"""Bulk jobs on the shared server, and on servers that a test starts."""

from collections.abc import AsyncIterator, Callable

import pytest

from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.redis_link import RedisLink
from orcastream.schemas.keys import Keys

MakeJob = Callable[..., Job]
FAR_MS = 4_000_000_000_000
ORDER = JobOrder(source="digest", created_ms=1000, deadline_ms=FAR_MS, kept_until_ms=FAR_MS)


@pytest.fixture
async def make_job(keys: Keys) -> AsyncIterator[MakeJob]:
    """A factory of jobs, each seen by its own process: `make_job(url, "id")`."""
    links: list[RedisLink] = []

    def make(url: str, job_id: str = "job", patience_s: float = 20.0) -> Job:
        links.append(RedisLink(url, "job"))
        return Job(links[-1], keys, job_id, patience_s=patience_s)

    yield make
    for link in links:
        await link.close()


def lines_of(count: int) -> list[JobLine]:
    return [JobLine(number, b"line %d" % number) for number in range(1, count + 1)]


async def sealed(job: Job, count: int) -> Job:
    """Seal the job with this number of lines."""
    await job.create(ORDER)
    await job.add_lines(lines_of(count), ORDER)
    assert await job.seal(count)
    return job


async def results_of(job: Job) -> dict[int, bytes]:
    """Return all results by line; each line has one."""
    results = await job.results_after("0", 100_000)
    found = {result.number: result.body for result in results}
    assert len(found) == len(results)
    return found
