"""The input file of a bulk job: checked whole first, so that no file with a mistake is queued, then handed over."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.cli.errors import UserError
from orcastream.cli.jobs.question import Question
from orcastream.schemas.errors import InvalidRequest

if TYPE_CHECKING:
    from hashlib import _Hash

_PIECE: Final = 200


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of one request per line; blank lines do not count. Model and longest answer are as in `Question.read`."""

    path: Path
    model: str
    max_tokens: int | None

    def survey(self) -> tuple[int, str]:
        """Return the number of requests, and a digest of everything that the answers depend on.

        Raises UserError naming each of the first invalid lines.
        """
        digest = self._digest()
        first_lines: dict[str, int] = {}
        for at, line in self._lines():
            digest.update(line.body + b"\n")
            try:
                question = Question.read(line.body, line.number, model=self.model, max_tokens=self.max_tokens)
            except InvalidRequest as error:
                raise UserError(f"{self.path}, line {at}: {error}") from None
            if (first := first_lines.setdefault(question.custom_id, at)) != at:
                raise UserError(
                    f"{self.path}, line {at}: custom_id {question.custom_id!r} is already used in line {first}"
                )
        if not first_lines:
            raise UserError(f"{self.path}: got no request, allowed: one JSON object per line")
        return len(first_lines), digest.hexdigest()

    async def hand_over(self, job: Job, order: JobOrder, total: int) -> None:
        """Add all lines to a job that is not sealed yet, and seal it.

        Raises UserError if the file has changed since the survey; then the job is deleted, because its id stands for
        other lines.
        """
        while True:
            last, number, digest = await job.last_line(), 0, self._digest()
            lines = (line for _, line in self._lines())
            while piece := list(islice(lines, _PIECE)):
                number = piece[-1].number
                for line in piece:
                    digest.update(line.body + b"\n")
                if fresh := [line for line in piece if line.number > last]:
                    await job.add_lines(fresh, order)
            if (number, digest.hexdigest()) != (total, order.source):
                if (await job.progress()).total is None:
                    await job.delete()
                raise UserError(f"{self.path}: was changed while it was read, allowed: a file that does not change")
            if await job.seal(total):
                return

    def _digest(self) -> "_Hash":
        return sha256(f"{self.model} {self.max_tokens}\n".encode())

    def _lines(self) -> Iterator[tuple[int, JobLine]]:
        """Yield the line number of each request, and the request."""
        number = 0
        try:
            with self.path.open("rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UserError(f"file: got {str(self.path)!r}, allowed: a regular file, because it is read twice")
                for at, raw in enumerate(file, start=1):
                    if body := raw.strip():
                        number += 1
                        yield at, JobLine(number, body)
        except OSError as error:
            raise UserError(
                f"file: got {str(self.path)!r}, allowed: a file that can be read ({error.strerror})"
            ) from None
