"""The file that a job's results go to: each of them once, whatever was killed while it was written."""

import fcntl
import json
from pathlib import Path
from typing import IO, Self

from orcastream.cli.errors import UserError


class ResultFile:
    """Appends to what is there. One process at a time; a line that was cut off is taken away."""

    def __init__(self, path: Path, job_id: str) -> None:
        """UserError where the file holds anything else, or another process writes to it."""
        self._path = path
        self._job_id = job_id
        self.numbers: set[int] = set()
        """The lines of the job whose results are there."""
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise UserError(
                f"output: got {str(path)!r}, allowed: a file that can be written ({error.strerror})"
            ) from None
        try:
            self._take_over()
        except BaseException:
            self._file.close()
            raise

    def write(self, number: int, result: bytes) -> None:
        """Append a result unless it is there."""
        if number not in self.numbers:
            self._file.write(result + b"\n")
            self.numbers.add(number)

    def flush(self) -> None:
        """Let others see what was written."""
        self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_over(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"output: another process is writing to {str(self._path)!r}") from None
        self._file.seek(0)
        whole = 0
        for at, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                self.numbers.add(_number_of(line, self._job_id))
            except (ValueError, LookupError, TypeError, AttributeError):
                allowed = f"a new file, or one with results of the job {self._job_id}; line {at} is none"
                raise UserError(f"output: got {str(self._path)!r}, allowed: {allowed}") from None
        self._file.truncate(whole)


def _number_of(result: bytes, job_id: str) -> int:
    """Which line of the job a result is of; ValueError and its like where it is of none."""
    job, _, number = json.loads(result)["id"].partition(".")
    if job != job_id:
        raise ValueError(job)
    return int(number)
