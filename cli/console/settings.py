"""Settings of the commands that inspect a queue: the Redis connection, and output options."""

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from orcastream.broker.settings import BrokerSettings
from orcastream.cli.variables import CommandSettings
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.limits import ID_PATTERN, ID_RULE, MAX_DEADLINE_AHEAD_MS

_LETTER_ID = r"^[0-9]{1,20}-[0-9]{1,20}(\.[0-9]{1,2})?$"
_MAX_TIMEOUT_S = MAX_DEADLINE_AHEAD_MS / 1000


class ConsoleSettings(BrokerSettings, CommandSettings):
    """Settings that every one of these commands takes."""

    from_environment = frozenset(BrokerSettings.model_fields)

    as_json: bool = Field(False, description="Print JSON, one object per line; --json for short.")


class RequestsListSettings(ConsoleSettings):
    """List waiting and running requests by priority class, oldest first."""

    priority_class: PriorityClass | None = Field(None, description="Only this class; --class for short.")
    state: Literal["waiting", "running"] | None = Field(None, description="Only waiting, or only running requests.")
    worker: str | None = Field(None, description="Only requests that this worker holds.")
    limit: int = Field(100, ge=0, description="Maximum number of requests to list; 0: all. [requests]")


class RequestSettings(ConsoleSettings):
    """One request."""

    id: CliPositionalArg[str] = Field(
        pattern=f"^(?:{ID_PATTERN.pattern})$",
        json_schema_extra={"allowed": ID_RULE},
        description="The request's id.",
    )


class RequestShowSettings(RequestSettings):
    """Show one request: its state, its worker and its progress."""

    content: bool = Field(False, description="Also print prompt and answer, as token ids, and complete messages.")


class LettersListSettings(ConsoleSettings):
    """List the dead letters, newest first."""

    reason: str | None = Field(None, description="Only those with this reason.")
    limit: int = Field(100, ge=0, description="Maximum number of dead letters to list; 0: all. [letters]")


class LetterSettings(ConsoleSettings):
    """One dead letter."""

    id: CliPositionalArg[str] = Field(
        pattern=_LETTER_ID,
        json_schema_extra={
            "allowed": "two numbers with - between, such as 1700000000000-0, in lane 3 1700000000000-0.3"
        },
        description="The letter's id, as `list` prints it.",
    )


class LetterShowSettings(LetterSettings):
    """Show one dead letter and what is known about its request."""

    content: bool = Field(False, description="Also print prompt and parameters, and complete messages.")


class ReplaySettings(LetterSettings):
    """Replay a dead letter's request as a new request with a new id, and delete the letter."""

    timeout_s: float = Field(600.0, gt=0, le=_MAX_TIMEOUT_S, description="Time until the new request expires. [s]")


class PurgeSettings(ConsoleSettings):
    """Delete dead letters, selected by reason, by age, or all of them."""

    reason: str | None = Field(None, description="Only those with this reason.")
    older_than_s: float | None = Field(None, ge=0, description="Only letters set aside longer ago than this. [s]")
    all: bool = Field(False, description="Delete all of them.")


class TopSettings(ConsoleSettings):
    """Show the queue by class and the workers with their batches and rates, live, until Ctrl-C."""

    once: bool = Field(False, description="Take two samples `interval_s` apart, for rates; print once and exit.")
    interval_s: float = Field(2.0, ge=0.2, le=3600, description="Refresh interval. [s]")
