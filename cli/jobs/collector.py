"""Brings a job's results into a file, as they come or in the order of their lines."""

from collections.abc import Callable
from typing import Final

from orcastream.broker.jobs.job import FIRST_RESULT, Job
from orcastream.cli.errors import UserError
from orcastream.cli.jobs.result_file import ResultFile

_PAGE: Final = 200


class Collector:
    """Reads on where it stopped. In order, a result waits here for those before it."""

    def __init__(self, job: Job, file: ResultFile, *, ordered: bool, on_written: Callable[[int], None]) -> None:
        """`on_written` is told how many results the file holds. UserError where it has results in another order."""
        self._job = job
        self._file = file
        self._ordered = ordered
        self._on_written = on_written
        self._cursor = FIRST_RESULT
        self._waiting: dict[int, bytes] = {}
        if ordered and not file.in_order:
            raise UserError("output: holds results as they came, allowed with --ordered: a new file")

    async def collect(self) -> None:
        """Write what is new. Raises as `Job`."""
        while results := await self._job.results_after(self._cursor, _PAGE):
            for result in results:
                self._take(result.number, result.body)
            self._cursor = results[-1].cursor
            self._file.flush()
            self._on_written(len(self._file.numbers))

    async def collect_anew(self) -> None:
        """As `collect`, from the first result on: Redis may have come back with less, and with others since."""
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
