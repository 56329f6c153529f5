"""Runs one batch from its current state to its end."""

import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any, Final

from orcastream.broker.files.file_store import FileLost, FileStore, UnreadableFile
from orcastream.broker.files.stored_file import Outcome, StoredFile
from orcastream.broker.jobs.job import Job, JobIncomplete, JobLine
from orcastream.broker.jobs.order import JobOrder, JobProgress
from orcastream.broker.jobs.runner import JobRunner, LineResult
from orcastream.broker.jobs.runner_lease import RunnerLease
from orcastream.gateway.batches.batch_metrics import BatchMetrics
from orcastream.gateway.batches.batch_object import Mark, has_ended
from orcastream.gateway.batches.batch_request import BatchTerms
from orcastream.gateway.batches.input_check import InputCheck, batch_error
from orcastream.gateway.batches.input_lines import LineTooLong, input_lines
from orcastream.gateway.batches.line_answers import LineAnswers
from orcastream.gateway.batches.timed_id import timed_id, unique_part
from orcastream.gateway.log import log_event
from orcastream.gateway.service import Gateway

OUTPUT_PURPOSE: Final = "batch_output"
_OUTPUTS: Final[tuple[tuple[Outcome, str, Mark], ...]] = (
    ("completed", "output", Mark.OUTPUT),
    ("failed", "error", Mark.ERROR_OUTPUT),
)


class BatchRun:
    """One run of a batch. Any gateway may repeat any step; the job's marks say where to continue."""

    def __init__(
        self,
        gateway: Gateway,
        files: FileStore,
        job: Job,
        order: JobOrder,
        terms: BatchTerms,
        metrics: BatchMetrics,
    ) -> None:
        self._gateway = gateway
        self._files = files
        self._job = job
        self._order = order
        self._terms = terms
        self._metrics = metrics
        self._answers: LineAnswers | None = None

    async def waits_for_workers(self) -> bool:
        """See `LineAnswers.wait_for_workers`; False while no line is asked."""
        return self._answers is not None and await self._answers.wait_for_workers()

    async def run(self, lease: RunnerLease) -> None:
        """Run the batch under the lease; return once it has ended. Raises JobLost, and what `Job` raises."""
        progress = await self._job.progress()
        if has_ended(progress):
            return
        if progress.total is None and not progress.cancelling and not await self._take_lines():
            await self._end_as(Mark.FAILED, progress)
            return
        if (await self._job.progress()).total is not None:
            await self._mark(Mark.IN_PROGRESS)
            self._answers = LineAnswers(self._gateway, self._job, self._order, self._terms)
            window = self._gateway.settings.batch_window
            try:
                await JobRunner(self._job, self._answers, lease, window=window, on_result=self._count).run()
            except JobIncomplete:
                await self._fail("lines_lost", "Redis has lost lines of this batch, or their results.")
        await self._end()

    async def _fail(self, code: str, message: str) -> None:
        """Record an error that concerns no single line: the batch will end as failed, with the results that it has."""
        await self._job.mark(Mark.ERRORS, json.dumps([batch_error(code, message)]))

    async def _take_lines(self) -> bool:
        """Copy the lines of the input file into the job; if the input is invalid, record the errors, return False."""
        errors = await self._check_input()
        if errors:
            await self._job.mark(Mark.ERRORS, json.dumps(errors))
            return False
        total = None
        while total is None or not await self._job.seal(total):
            total = await self._add_lines()
        return True

    async def _check_input(self) -> list[dict[str, Any]]:
        settings, models = self._gateway.settings, self._gateway.models
        check = InputCheck(self._terms.endpoint, max_lines=settings.max_batch_lines, max_values=models.max_total_tokens)
        try:
            file = await self._files.find(self._order.tenant, self._terms.asked.input_file_id)
        except UnreadableFile as error:
            check.complain("file_unreadable", str(error), param="input_file_id")
            return check.errors
        if file is None:
            check.complain("file_not_found", "The input file no longer exists.", param="input_file_id")
            return check.errors
        try:
            async for lines in input_lines(self._files.content(file), settings.max_body_bytes):
                size_bytes = sum(len(line.raw) for line in lines)
                await self._gateway.offload.run(size_bytes, partial(check.add, lines))
                if check.failed:
                    return check.errors
        except LineTooLong as error:
            check.complain("invalid_line", str(error), line=error.at)
        except FileLost as error:
            check.complain("file_not_found", str(error), param="input_file_id")
        else:
            check.end()
        return check.errors

    async def _add_lines(self) -> int:
        """Add all lines to the job; return their number."""
        number, settings = 0, self._gateway.settings
        file = await self._files.find(self._order.tenant, self._terms.asked.input_file_id)
        if file is None:
            raise FileLost(self._terms.asked.input_file_id)
        async for lines in input_lines(self._files.content(file), settings.max_body_bytes):
            numbered = [JobLine(number + ahead, line.raw) for ahead, line in enumerate(lines, start=1)]
            number += len(numbered)
            if numbered:
                await self._job.add_lines(numbered, self._order)
        return number

    async def _end(self) -> None:
        """Add the output files to the tenant's files, and record how the batch ended."""
        await self._mark(Mark.FINALIZING)
        progress = await self._job.progress()
        for outcome, name, mark in _OUTPUTS:
            if getattr(progress, outcome):
                file = self._output(progress, outcome, name)
                if Mark.ERRORS in progress.marks:  # results may be lost
                    file = replace(file, size_bytes=await self._files.bytes_left(file))
                if file.size_bytes:
                    await self._files.keep(self._order.tenant, file)
                    await self._job.mark(mark, file.id)
        if Mark.ERRORS in progress.marks:
            await self._end_as(Mark.FAILED, progress)
        elif progress.cancelling:
            await self._end_as(Mark.CANCELLED, progress)
        else:
            await self._end_as(Mark.EXPIRED if Mark.OVERDUE in progress.marks else Mark.COMPLETED, progress)

    def _output(self, progress: JobProgress, outcome: Outcome, name: str) -> StoredFile:
        """Return the file with the results of one outcome."""
        created_ms = int(progress.marks[Mark.FINALIZING])
        lines, size_bytes = getattr(progress, outcome), getattr(progress, f"{outcome}_bytes")
        return StoredFile(
            id=f"{timed_id('file-', created_ms, unique_part(self._job.id))}-{name}",
            filename=f"{self._job.id}_{name}.jsonl",
            purpose=OUTPUT_PURPOSE,
            size_bytes=size_bytes + lines,
            created_ms=created_ms,
            expires_ms=min(created_ms + int(self._terms.kept_s * 1000), self._order.kept_until_ms),
            job=self._job.id,
            outcome=outcome,
        )

    def _count(self, result: LineResult) -> None:
        self._metrics.line(failed=result.failed)

    async def _end_as(self, mark: Mark, progress: JobProgress) -> None:
        """Record how the batch ended; count and log it only if no other run has recorded it."""
        if not await self._mark(mark):
            return
        status = mark.removesuffix("_ms")
        self._metrics.ended(status)
        counts = {"total": progress.total, "completed": progress.completed, "failed": progress.failed}
        log_event("batch ended", level=logging.INFO, batch=self._job.id, status=status, **counts)

    async def _mark(self, mark: Mark) -> bool:
        return await self._job.mark(mark, self._gateway.redis.now_ms)
