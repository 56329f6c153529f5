"""The order of a bulk job, and its progress."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import DEFAULT_TENANT, PriorityClass

MAX_JOB_ID_LENGTH: Final = 64
JOB_ID: Final = re.compile(rf"[A-Za-z0-9_\-]{{1,{MAX_JOB_ID_LENGTH}}}")
"""No dot: in a request's id, the line's number follows the first one."""
JOB_ID_RULE: Final = f"1 to {MAX_JOB_ID_LENGTH} characters of A-Z a-z 0-9 _ -"
"""`JOB_ID` in words."""

_ENDED_EARLY: Final = 3
"""Attempts at a line that may have failed before their time was over."""

CANCELLING: Final = "cancelling_ms"
"""The mark of a cancelled job: when it was cancelled. [ms]"""
WINDOW: Final = "window_"
"""Prefix of a mark: its number is how many lines a runner, possibly gone by now, may have in flight."""


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class JobOrder:
    """The constant part of a job. Times are Unix milliseconds of the server's clock.

    `source` identifies what was submitted, for example by a digest: a submission with another source is refused under
    the same id. At `deadline_ms`, lines without an answer get none any more. At `kept_until_ms` the job is deleted.
    `details` belong to the submitter.
    """

    source: str
    created_ms: int
    deadline_ms: int
    kept_until_ms: int
    tenant: str = DEFAULT_TENANT
    priority_class: PriorityClass = "low"
    details: Mapping[str, Any] = field(default_factory=dict)

    def attempts_by(self, now_ms: int, timeout_s: float) -> int:
        """Return how many attempts a line may have had whose outcome is unknown: those that took all of their time,
        and a few that ended earlier.
        """
        return int((now_ms - self.created_ms) / 1000 / timeout_s) + _ENDED_EARLY

    def as_text(self) -> str:
        """Return the order as stored in Redis."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: bytes) -> "JobOrder":
        """Parse what `as_text` wrote; raise InvalidRequest if it is another version's, or damaged."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise first_complaint(error, "order") from None


_ADAPTER: Final = TypeAdapter(JobOrder)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A job's progress. `total` is None while lines are being added; `completed` and `failed` count lines with results.

    `marks` are the job's other records, see `Job.mark`.
    """

    total: int | None
    completed: int
    failed: int
    completed_bytes: int = 0
    failed_bytes: int = 0
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int | None:
        """Lines without a result."""
        return None if self.total is None else max(0, self.total - self.completed - self.failed)

    @property
    def widest_window(self) -> int:
        """The most lines that any of its runners had in flight."""
        numbers = [name.removeprefix(WINDOW) for name in self.marks if name.startswith(WINDOW)]
        return max([int(number) for number in numbers if number.isdecimal()], default=0)

    @property
    def ended(self) -> bool:
        """Whether every line has its result."""
        return self.left == 0

    @property
    def cancelling(self) -> bool:
        """Whether lines without a result are no longer to be answered."""
        return CANCELLING in self.marks


def check_job_id(job_id: str) -> str:
    """Return the id; raise InvalidRequest if it is not a valid one."""
    if not JOB_ID.fullmatch(job_id):
        raise InvalidRequest("job", job_id, JOB_ID_RULE)
    return job_id
