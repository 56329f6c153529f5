"""Settings of the commands for bulk jobs."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from orcastream.broker.jobs.order import JOB_ID, JOB_ID_RULE
from orcastream.broker.settings import NAME
from orcastream.cli.console.settings import ConsoleSettings
from orcastream.schemas.keys import DEFAULT_TENANT, PriorityClass
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS, MAX_OUTPUT_TOKENS, NAME_RULE

_JOB = f"^(?:{JOB_ID.pattern})$"
_MAX_TIMEOUT_S = MAX_DEADLINE_AHEAD_MS // 1000
_DAY_S = 86_400


class SubmitSettings(ConsoleSettings):
    """Answer every line of a file once, through the queue. To continue an interrupted job, run the command again."""

    file: CliPositionalArg[Path] = Field(
        description='The requests, one JSON object per line: OpenAI\'s batch lines, or {"prompt": ...}.'
    )
    output: Path | None = Field(
        None, description="File for the results; those in it stay. None: FILE with .results before its suffix."
    )
    ordered: bool = Field(False, description="Write results in the order of their requests instead of their arrival.")
    job: str | None = Field(
        None,
        pattern=_JOB,
        json_schema_extra={"allowed": JOB_ID_RULE},
        description="The job's id; none: derived from the file and the model.",
    )
    window: int = Field(
        128,
        ge=1,
        description="Most requests of the job that wait or run at once; at most half of max_queue_depth. [requests]",
    )
    priority_class: PriorityClass = Field("low", description="Priority class of the requests; --class for short.")
    tenant: str = Field(
        DEFAULT_TENANT,
        pattern=NAME,
        json_schema_extra={"allowed": NAME_RULE},
        description="Tenant of the requests.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_OUTPUT_TOKENS,
        description="Default maximum answer length of a line; none: what the context leaves, 16 for a prompt. [tokens]",
    )
    timeout_s: float = Field(
        3600.0, ge=1, le=_MAX_TIMEOUT_S, description="A request that has not ended after this time is posted again. [s]"
    )
    completion_window_s: float = Field(
        _MAX_TIMEOUT_S, ge=1, le=_MAX_TIMEOUT_S, description="A line without an answer after this time fails. [s]"
    )
    keep_s: float = Field(
        _DAY_S, ge=0, le=30 * _DAY_S, description="How long Redis keeps the job and its results after that. [s]"
    )


class ResultsSettings(ConsoleSettings):
    """Show a job's results so far; without a job, list all jobs."""

    job: CliPositionalArg[str] = Field(
        "",
        pattern=f"^$|{_JOB}",
        json_schema_extra={"allowed": JOB_ID_RULE},
        description="The job's id; none: list the jobs.",
    )
    output: Path | None = Field(None, description="File to append missing results to; none: print them.")
    ordered: bool = Field(False, description="In the order of their requests instead of their arrival.")
    delete: bool = Field(False, description="Delete the job after all of its results are written.")
    cancel: bool = Field(
        False,
        description="Answer no more lines; `submit`, running or run again, ends the job with the results so far.",
    )

    @model_validator(mode="after")
    def _a_job_is_named(self) -> Self:
        """Reject flags that apply to one job when none is named."""
        for name in ("output", "ordered", "delete", "cancel"):
            if not self.job and getattr(self, name):
                raise ValueError(f"job (JOB): got nothing, allowed with --{name}: {JOB_ID_RULE}")
        return self
