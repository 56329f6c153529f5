"""`orcastream submit FILE.jsonl`: answer every line through the queue, and write each result to a file once."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from orcastream.broker.connection import Connection
from orcastream.broker.jobs.job import Job, JobIncomplete, JobLost, OtherJob
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.jobs.runner import JobRunner
from orcastream.broker.jobs.runner_lease import RunnerLease
from orcastream.broker.presence import new_process_name
from orcastream.broker.redis_link import RedisLink
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.errors import UserError
from orcastream.cli.interruption import interrupt_on_stop
from orcastream.cli.jobs.answers import Answers
from orcastream.cli.jobs.collector import Collector
from orcastream.cli.jobs.context import CONTRACT, Context
from orcastream.cli.jobs.input_file import InputFile
from orcastream.cli.jobs.result_file import ResultFile
from orcastream.cli.jobs.settings import SubmitSettings
from orcastream.cli.parse import load_settings
from orcastream.cli.served_model import DEMO_MODEL_NAME, demo_model, with_model, with_redis
from orcastream.client import AsyncClient, Unavailable
from orcastream.schemas.model_limits import ModelLimits
from orcastream.text.model_config import ModelConfig, ModelFilesError
from orcastream.text.tokenizer import Tokenizer

_LEASE_MS = 5000
"""A process that runs a job and has given no sign of life for this long counts as dead."""
_LOOK_S = 0.5


def main(arguments: Sequence[str]) -> int:
    """Return exit code 1 if lines have failed or the job cannot be done, 130 after Ctrl-C or SIGTERM."""
    settings = with_model(with_redis(load_settings(SubmitSettings, arguments, "submit", FLAGS)))
    if settings.window > settings.max_queue_depth // 2:
        most = f"at most {settings.max_queue_depth // 2}, half of max_queue_depth"
        raise UserError(f"window (--window, ORCASTREAM_WINDOW): got {settings.window}, allowed: {most}")
    interrupt_on_stop()
    try:
        file = InputFile(settings.file, settings.served_name, settings.max_tokens)
        work = partial(_submit, file=file, survey=file.survey(), tokenizer=_tokenizer(settings))
        return run_with_redis(settings, work)
    except KeyboardInterrupt:
        print("orcastream submit: interrupted; run the same command again to continue", file=sys.stderr)
        raise


async def _submit(
    link: Connection, settings: SubmitSettings, file: InputFile, survey: tuple[int, str], tokenizer: Tokenizer
) -> None:
    total, digest = survey
    redis = RedisLink(str(settings.connection_url), f"submit-{new_process_name()}")
    job = Job(redis, settings.keys(), settings.job or f"job-{digest[:24]}", patience_s=settings.completion_window_s)
    output = settings.output or settings.file.with_suffix(f".results{settings.file.suffix}")
    try:
        with ResultFile(output, job.id) as results, _bar() as bar:
            order = await job.create(_order(settings, digest, await link.server_time_ms()))
            if (await job.progress()).total is None:
                await file.hand_over(job, order, total)
            shown = bar.add_task(job.id, total=total, completed=len(results.numbers))
            collector = _collector(job, results, settings, bar, shown)
            with suppress(JobIncomplete):  # its results are collected all the same
                await _run(settings, job, order, redis, tokenizer, collector)
            if len(results.numbers) != total:
                await collector.collect_anew()
            if len(results.numbers) != total:
                if not await job.lines_after(0, 1):
                    await job.delete()  # nothing is left to continue
                raise JobIncomplete(job.id)
        progress = await job.progress()
    except JobLost as error:
        kept = "results already in the output are kept, and the same command answers the other lines"
        raise NotDone(f"{error}; {kept}") from None
    except (OtherJob, Unavailable) as error:
        raise NotDone(f"{error}; results already in the output are kept") from None
    finally:
        await redis.close()
    facts = {"job": job.id, "lines": total, "completed": progress.completed, "failed": progress.failed}
    show_one({**facts, "output": str(output)}, as_json=settings.as_json)
    if progress.failed:
        raise NotDone(f"{progress.failed} of {total} lines have failed; see their `error`")


def _order(settings: SubmitSettings, digest: str, now_ms: int) -> JobOrder:
    deadline_ms = now_ms + int(settings.completion_window_s * 1000)
    return JobOrder(
        source=digest,
        created_ms=now_ms,
        deadline_ms=deadline_ms,
        kept_until_ms=deadline_ms + int(settings.keep_s * 1000),
        tenant=settings.tenant,
        priority_class=settings.priority_class,
        details={"file": os.fsencode(settings.file.name).decode(errors="replace"), "model": settings.served_name},
    )


def _bar() -> Progress:
    """Return a progress bar on standard error, shown only on a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _collector(job: Job, results: ResultFile, settings: SubmitSettings, bar: Progress, shown: TaskID) -> Collector:
    return Collector(
        job, results, ordered=settings.ordered, on_written=lambda count: bar.update(shown, completed=count)
    )


async def _run(
    settings: SubmitSettings,
    job: Job,
    order: JobOrder,
    redis: RedisLink,
    tokenizer: Tokenizer,
    collector: Collector,
) -> None:
    """Run the job and collect its results at the same time."""
    news = asyncio.Event()
    async with _client(settings, order, tokenizer) as client:
        answers = Answers(
            client,
            job,
            order,
            model=settings.served_name,
            tokenizer=tokenizer,
            context=Context(redis, settings.keys(), _stated(settings), patience_s=settings.completion_window_s),
            max_tokens=settings.max_tokens,
            timeout_s=settings.timeout_s,
            now_ms=lambda: redis.now_ms,
        )
        running = asyncio.create_task(_answer_all(job, answers, settings.window, news))
        running.add_done_callback(lambda _: news.set())
        try:
            while not running.done():
                await collector.collect()
                await news.wait()
                news.clear()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    await collector.collect()


async def _answer_all(job: Job, answers: Answers, window: int, news: asyncio.Event) -> None:
    """Run the job, or wait while another process runs it."""
    lease = RunnerLease(job, new_process_name(), lease_ms=_LEASE_MS)
    runner = JobRunner(job, answers, lease, window=window, on_result=lambda _: news.set())
    while not (await lease.take() and await lease.keep(runner.run())):
        if (await job.progress()).ended:
            return
        news.set()  # results that the other process has stored
        await asyncio.sleep(_LOOK_S)


def _tokenizer(settings: SubmitSettings) -> Tokenizer:
    try:
        return Tokenizer.load(settings.model)
    except ModelFilesError as error:
        raise UserError(str(error)) from None


def _stated(settings: SubmitSettings) -> ModelLimits:
    """Return the context limits in the model's files; unknown ones if they belong to another model."""
    if settings.model == demo_model() and settings.served_name != DEMO_MODEL_NAME:
        return CONTRACT
    try:
        return ModelConfig.load(settings.model).limits
    except ModelFilesError:
        return CONTRACT


def _client(settings: SubmitSettings, order: JobOrder, tokenizer: Tokenizer) -> AsyncClient:
    return AsyncClient(
        str(settings.connection_url),
        settings.served_name,
        patience_s=settings.completion_window_s,
        namespace=settings.namespace,
        tenant=order.tenant,
        queue_lanes=settings.queue_lanes,
        tokenizer=tokenizer,
        retention_s=settings.retention_s,
    )
