"""`orcastream results [JOB]`: show the results of a bulk job so far, or list the jobs."""

import sys
from collections.abc import Sequence
from typing import Any

from orcastream.broker.connection import Connection
from orcastream.broker.jobs.job import FIRST_RESULT, Job, JobIncomplete, JobLost, list_jobs
from orcastream.broker.jobs.order import JobProgress, check_job_id
from orcastream.broker.presence import new_process_name
from orcastream.broker.redis_link import RedisLink
from orcastream.cli.console.output import Lines
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.jobs.collector import Collector
from orcastream.cli.jobs.result_file import ResultFile
from orcastream.cli.jobs.settings import ResultsSettings
from orcastream.cli.parse import load_settings

_COLUMNS = {"job": 38, "state": 10, "lines": 8, "completed": 9, "failed": 8, "age_s": 8, "expires_in_s": 10, "file": 1}
_PATIENCE_S = 10.0
_PAGE = 200


def main(arguments: Sequence[str]) -> int:
    """Return exit code 1 if there is no such job, it has not ended yet, Redis has lost results, or it is to be canceled
    and has ended."""
    return run_with_redis(load_settings(ResultsSettings, arguments, "results", FLAGS), _results)


async def _results(link: Connection, settings: ResultsSettings) -> None:
    redis = RedisLink(str(settings.connection_url), f"results-{new_process_name()}")
    try:
        if not settings.job:
            await _list(link, redis, settings)
            return
        job = Job(redis, settings.keys(), settings.job, patience_s=_PATIENCE_S)
        progress = await job.progress()
        if settings.cancel:
            if progress.ended:
                raise NotDone(f"job: got {job.id!r}, which has ended, allowed with --cancel: one that has not")
            await job.cancel()
            progress = await job.progress()
        if settings.output is None:
            count = await _print(job, ordered=settings.ordered)
        else:
            with ResultFile(settings.output, job.id) as file:
                await Collector(job, file, ordered=settings.ordered, on_written=lambda _: None).collect()
                count = len(file.numbers)
        if not progress.ended:
            left = "lines are still being added" if progress.total is None else f"{progress.left} lines have no result"
            raise NotDone(f"{job.id} has not ended: {left}; `orcastream submit` continues it")
        if count < progress.completed + progress.failed:
            raise JobIncomplete(job.id)
        if settings.delete:
            await job.delete()
    except JobLost as error:
        raise NotDone(str(error)) from None
    finally:
        await redis.close()


async def _print(job: Job, *, ordered: bool) -> int:
    """Return the number of results."""
    cursor, bodies, count = FIRST_RESULT, dict[int, bytes](), 0
    while page := await job.results_after(cursor, _PAGE):
        cursor, count = page[-1].cursor, count + len(page)
        for result in page:
            if ordered:
                bodies[result.number] = result.body
            else:
                _show(result.body)
    for number in sorted(bodies):
        _show(bodies[number])
    return count


def _show(body: bytes) -> None:
    """Print the bytes unchanged: JSON is UTF-8, whatever the terminal's encoding."""
    sys.stdout.buffer.write(body + b"\n")


async def _list(link: Connection, redis: RedisLink, settings: ResultsSettings) -> None:
    lines = Lines(_COLUMNS, as_json=settings.as_json)
    now_ms = await link.server_time_ms()
    for job_id in await list_jobs(link, settings.keys()):
        try:
            job = Job(redis, settings.keys(), check_job_id(job_id), patience_s=_PATIENCE_S)
            lines.show(await _facts(job, now_ms))
        except (ValueError, JobLost):
            continue  # the job has expired, or another program wrote the key


async def _facts(job: Job, now_ms: int) -> dict[str, Any]:
    order, progress = await job.order(), await job.progress()
    return {
        "job": job.id,
        "state": _state(progress),
        "lines": progress.total,
        "completed": progress.completed,
        "failed": progress.failed,
        "age_s": (now_ms - order.created_ms) / 1000,
        "expires_in_s": (order.kept_until_ms - now_ms) / 1000,
        "class": order.priority_class,
        "tenant": order.tenant,
        "file": order.details.get("file"),
    }


def _state(progress: JobProgress) -> str:
    if progress.ended:
        return "ended"
    if progress.cancelling:
        return "cancelling"
    return "incomplete" if progress.total is None else "running"
