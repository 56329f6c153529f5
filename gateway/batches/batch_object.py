"""A batch as OpenAI writes it: a function of its bulk job."""

import json
import re
from enum import StrEnum
from typing import Any, Final

from orcastream.broker.jobs.order import CANCELLING, JobOrder, JobProgress
from orcastream.gateway.batches.batch_request import BatchTerms
from orcastream.schemas.errors import InvalidRequest


class Mark(StrEnum):
    """Marks of a batch's job, each set once; those about times are in Unix milliseconds."""

    IN_PROGRESS = "in_progress_ms"
    FINALIZING = "finalizing_ms"
    COMPLETED = "completed_ms"
    FAILED = "failed_ms"
    EXPIRED = "expired_ms"
    CANCELLED = "cancelled_ms"
    ERRORS = "errors"
    """Errors in its input, or of the batch as a whole, as JSON."""
    OVERDUE = "overdue_ms"
    """When the completion window ended before every line was answered."""
    OUTPUT = "output_file"
    ERROR_OUTPUT = "error_file"
    """Ids of the files that the batch has written."""


ENDS: Final = (Mark.FAILED, Mark.CANCELLED, Mark.EXPIRED, Mark.COMPLETED)
_STATES: Final = (*ENDS, CANCELLING, Mark.FINALIZING)
"""The first mark that is set determines the status."""
_TIME: Final = re.compile(r"[0-9]{1,15}")


def check_marks(progress: JobProgress) -> None:
    """Raise ValueError if a mark does not have this version's format."""
    for mark in (CANCELLING, *Mark):
        text = progress.marks.get(mark)
        if text is not None and mark.endswith("_ms") and not _TIME.fullmatch(text):
            raise InvalidRequest(mark, text, "Unix milliseconds")
    _errors(progress)


def status_of(progress: JobProgress) -> str:
    """Return OpenAI's name of a batch's state."""
    for mark in _STATES:
        if mark in progress.marks:
            return mark.removesuffix("_ms")
    return "validating" if progress.total is None else "in_progress"


def has_ended(progress: JobProgress) -> bool:
    """Whether the batch has reached its final state."""
    return any(mark in progress.marks for mark in ENDS)


def batch_object(batch_id: str, order: JobOrder, terms: BatchTerms, progress: JobProgress) -> dict[str, Any]:
    """Return the whole batch object."""
    marks, errors = progress.marks, _errors(progress)
    return {
        "id": batch_id,
        "object": "batch",
        "endpoint": terms.asked.endpoint,
        "model": None,
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": terms.asked.input_file_id,
        "completion_window": terms.asked.completion_window,
        "status": status_of(progress),
        "output_file_id": marks.get(Mark.OUTPUT),
        "error_file_id": marks.get(Mark.ERROR_OUTPUT),
        "created_at": order.created_ms // 1000,
        "expires_at": order.deadline_ms // 1000,
        **{
            f"{mark.removesuffix('_ms')}_at": int(marks[mark]) // 1000 if mark in marks else None
            for mark in (Mark.IN_PROGRESS, *_STATES)
        },
        "request_counts": {
            "total": progress.total or 0,
            "completed": progress.completed,
            "failed": progress.failed,
        },
        "usage": None,
        "metadata": terms.asked.metadata,
    }


def _errors(progress: JobProgress) -> list[Any] | None:
    text = progress.marks.get(Mark.ERRORS)
    errors = None if text is None else json.loads(text)
    if not isinstance(errors, list | None):
        raise InvalidRequest(Mark.ERRORS, errors, "an array")
    return errors
