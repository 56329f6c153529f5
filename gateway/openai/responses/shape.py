"""A response as OpenAI writes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.openai.endpoint import Json
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Terminal
from orcastream.schemas.stopping import FinishReason

_UNTOLD: Final[Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a response whose request is no longer known."""


class Status(StrEnum):
    """The state of a response."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def of(cls, terminal: Terminal) -> "Status":
        """Return the status of a response that has ended."""
        if terminal.error is not None:
            return cls.CANCELLED if terminal.error is ErrorCode.CANCELLED else cls.FAILED
        is_cut = terminal.endings[0].finish_reason is FinishReason.LENGTH
        return cls.INCOMPLETE if is_cut else cls.COMPLETED


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """What all forms of one response have in common. `created` is in seconds of Unix time, `id` is the client's.

    `told`: the fields of the request that the response repeats.
    """

    id: str
    model: str
    created: int
    told: Json = field(default_factory=dict)

    @property
    def first_status(self) -> Status:
        """The status at the beginning of its stream, before anything is computed."""
        return Status.QUEUED if self.told.get("background") else Status.IN_PROGRESS

    def item_id(self, kind: str, index: int) -> str:
        """Return the id of an output item: the same for every reader."""
        return f"{kind}_{self.id.removeprefix('resp_')}_{index}"

    def written(
        self,
        status: Status,
        output: Sequence[Json] = (),
        terminal: Terminal | None = None,
        usage: AnswerUsage | None = None,
    ) -> Json:
        """Return the response with its output so far."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": str(status),
            "model": self.model,
            **_UNTOLD,
            **self.told,
            "output": list(output),
            "completed_at": self._completed_at(terminal) if status is Status.COMPLETED else None,
            "error": None if terminal is None else _error(terminal),
            "incomplete_details": {"reason": "max_output_tokens"} if status is Status.INCOMPLETE else None,
            "usage": None if usage is None else _usage(usage),
        }

    def _completed_at(self, terminal: Terminal | None) -> int | None:
        total_ms = None if terminal is None else terminal.timings.get("total_ms")
        return None if total_ms is None else self.created + round(total_ms / 1000)


def _error(terminal: Terminal) -> Json | None:
    """Return the error with one of OpenAI's two codes, and the actual code as the type."""
    if terminal.error is None:
        return None
    code = "invalid_prompt" if terminal.error is ErrorCode.INVALID_REQUEST else "server_error"
    message: Any = terminal.message or str(terminal.error)
    return {"code": code, "message": message, "type": str(terminal.error), "param": terminal.field_name}


def _usage(usage: AnswerUsage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
