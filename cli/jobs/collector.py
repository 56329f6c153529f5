"""Writes a job's results to a file, as they arrive or in the order of their lines."""

from collections.abc import Callable
from typing import Final

from orcastream.broker.jobs.job import FIRST_RESULT, Job
from orcastream.cli.errors import UserError
from orcastream.cli.jobs.result_file import ResultFile

_PAGE: Final = 200


class Collector:
    """A reader of results that resumes where it stopped. If `ordered`, a result waits here for all earlier ones."""

    def __init__(self, job: Job, file: ResultFile, *, ordered: bool, on_written: Callable[[int], None]) -> None:
        """`on_written` gets the number of results in the file. Raises UserError if their order in the file differs."""
        self._job = job
        self._file = file
        self._ordered = ordered
        self._on_written = on_written
        self._cursor = FIRST_RESULT
        self._waiting: dict[int, bytes] = {}
        if ordered and not file.in_order:
            raise UserError("output: holds results in order of arrival, allowed with --ordered: a new file")

    async def collect(self) -> None:
        """Write new results. Raises the errors of `Job`."""
        while results := await self._job.results_after(self._cursor, _PAGE):
            for result in results:
                self._take(result.number, result.body)
            self._cursor = results[-1].cursor
            self._file.flush()
            self._on_written(len(self._file.numbers))

    async def collect_anew(self) -> None:
        """As `collect`, from the first result on: Redis may have lost results, and gained others since."""
        self._cursor = FIRST_RESULT
        await self.collect()

    def _take(self, number: int, body: bytes) -> None:
        if not self._ordered:
            self._file.write(number, body)
            return
        if number > len(self._file.numbers):
            self._waiting.setdefault(number, body)
        while (following := self._waiting.pop(len(self._file.numbers) + 1, None)) is not None:
            self._file.write(len(self._file.numbers) + 1, following)
