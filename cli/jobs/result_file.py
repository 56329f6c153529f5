"""The file that a job's results go to: each of them once, whatever was killed while it was written."""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from orcastream.cli.console.run import NotDone
from orcastream.cli.errors import UserError


class ResultFile:
    """Appends to what is there. One process at a time; a line that was cut off is taken away."""

    def __init__(self, path: Path, job_id: str) -> None:
        """UserError where the file holds anything else, or another process writes to it."""
        self._path = path
        self._job_id = job_id
        self.numbers: set[int] = set()
        """The lines of the job whose results are there."""
        self.in_order = True
        """Whether what was there are the job's first lines, in their order."""
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise self._unusable(error.strerror or "it is not a regular one") from None
        try:
            self._take_over()
        except BaseException:
            self._file.close()
            raise

    def write(self, number: int, result: bytes) -> None:
        """Append a result unless it is there. NotDone where that fails, as of `flush` and `close`."""
        if number not in self.numbers:
            with self._writing():
                self._file.write(result + b"\n")
            self.numbers.add(number)

    def flush(self) -> None:
        """Let others see what was written."""
        with self._writing():
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        with self._writing():
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{str(self._path)!r} cannot be written: {error.strerror}"
            raise NotDone(f"output: {reason}; the same command goes on where this one ended") from None

    def _unusable(self, why: str) -> UserError:
        return UserError(f"output: got {str(self._path)!r}, allowed: a file that can be written ({why})")

    def _take_over(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise self._unusable("it is not a regular one")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"output: another process is writing to {str(self._path)!r}") from None
        self._file.seek(0)
        whole = 0
        for at, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                if not _may_begin(line, self._job_id):
                    raise self._other(at)
                break
            whole += len(line)
            try:
                number = _number_of(line, self._job_id)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise self._other(at) from None
            self.numbers.add(number)
            self.in_order = self.in_order and number == at
        with self._writing():
            self._file.truncate(whole)

    def _other(self, at: int) -> UserError:
        allowed = f"a new file, or one with results of the job {self._job_id}; line {at} is none"
        return UserError(f"output: got {str(self._path)!r}, allowed: {allowed}")


def _may_begin(cut: bytes, job_id: str) -> bool:
    """Is it the beginning of a result of the job, and not of somebody's file that ends without a line break?"""
    head = f'{{"id": "{job_id}.'.encode()
    return cut.startswith(head) or head.startswith(cut)


def _number_of(result: bytes, job_id: str) -> int:
    """Which line of the job a result is of; ValueError and its like where it is of none."""
    job, _, number = json.loads(result)["id"].partition(".")
    if job != job_id:
        raise ValueError(job)
    return int(number)
