"""What a bulk job was ordered as, and how far it is."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.request import DEFAULT_TENANT

MAX_JOB_ID_LENGTH: Final = 64
JOB_ID: Final = re.compile(rf"[A-Za-z0-9_\-]{{1,{MAX_JOB_ID_LENGTH}}}")
"""No dot: behind the first one in a request's id stands the number of its line."""
JOB_ID_RULE: Final = f"1 to {MAX_JOB_ID_LENGTH} characters of A-Z a-z 0-9 _ -"
"""`JOB_ID` in words."""

_ENDED_EARLY: Final = 3
"""Attempts of a line that came to nothing before their time was over."""

CANCELLING: Final = "cancelling_ms"
"""The mark of a job that was cancelled: when. [ms]"""
WINDOW: Final = "window_"
"""Before a number: the mark of a job of which as many lines may be in flight, by a runner that may be gone."""


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class JobOrder:
    """What does not change of a job. Times are Unix milliseconds of the server's clock.

    `source` identifies what was submitted, such as a digest of it: under the id of a job with another one nothing is
    taken. `deadline_ms`: what has no answer then gets none. `kept_until_ms`: then nothing is left of the job.
    `details` are the submitter's own.
    """

    source: str
    created_ms: int
    deadline_ms: int
    kept_until_ms: int
    tenant: str = DEFAULT_TENANT
    priority_class: PriorityClass = "low"
    details: Mapping[str, Any] = field(default_factory=dict)

    def attempts_by(self, now_ms: int, timeout_s: float) -> int:
        """How many attempts a line may have had of which nothing is known any more: those that took all of their time,
        and a few that ended before.
        """
        return int((now_ms - self.created_ms) / 1000 / timeout_s) + _ENDED_EARLY

    def as_text(self) -> str:
        """As it is kept in Redis."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: bytes) -> "JobOrder":
        """As `as_text` wrote it; InvalidRequest where it is another version's, or damaged."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise first_complaint(error, "order") from None


_ADAPTER: Final = TypeAdapter(JobOrder)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """`total` is None while lines are still being added. Lines with a result: `completed` and `failed`.

    `marks` are what else was noted of the job, see `Job.mark`.
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
        """Whether lines without a result are not to be answered any more."""
        return CANCELLING in self.marks


def check_job_id(job_id: str) -> str:
    """The id itself; InvalidRequest where it cannot be one."""
    if not JOB_ID.fullmatch(job_id):
        raise InvalidRequest("job", job_id, JOB_ID_RULE)
    return job_id
