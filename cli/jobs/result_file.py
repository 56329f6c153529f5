"""The file of a job's results: it holds each result once, even after a kill during a write."""

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
    """An append-only file of results. One process writes at a time; a truncated last line is removed."""

    def __init__(self, path: Path, job_id: str) -> None:
        """Raises UserError if the file holds anything else, or another process writes to it."""
        self._path = path
        self._job_id = job_id
        self.numbers: set[int] = set()
        """The job's lines whose results the file holds."""
        self.in_order = True
        """Whether the file held exactly the job's first lines, in order."""
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise self._unusable(error.strerror or "it is not a regular file") from None
        try:
            self._take_over()
        except BaseException:
            self._file.close()
            raise

    def write(self, number: int, result: bytes) -> None:
        """Append a result unless the file holds it. `write`, `flush` and `close` raise NotDone if they fail."""
        if number not in self.numbers:
            with self._writing():
                self._file.write(result + b"\n")
            self.numbers.add(number)

    def flush(self) -> None:
        """Make the written results visible to others."""
        with self._writing():
            self._file.flush()

    def close(self) -> None:
        """Write buffered results and close the file."""
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
            raise NotDone(f"output: {reason}; run the same command again to continue") from None

    def _unusable(self, why: str) -> UserError:
        return UserError(f"output: got {str(self._path)!r}, allowed: a file that can be written ({why})")

    def _take_over(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise self._unusable("it is not a regular file")
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
    """Return whether it begins like a result of the job, unlike another file that ends without a line break."""
    head = f'{{"id": "{job_id}.'.encode()
    return cut.startswith(head) or head.startswith(cut)


def _number_of(result: bytes, job_id: str) -> int:
    """Return the number of the job's line that a result belongs to. Raises ValueError or the like if there is none."""
    job, _, number = json.loads(result)["id"].partition(".")
    if job != job_id:
        raise ValueError(job)
    return int(number)
