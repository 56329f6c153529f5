"""Settings of the commands about API keys."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from orcastream.broker.settings import NAME
from orcastream.cli.console.settings import ConsoleSettings
from orcastream.gateway.admission.api_key import MAX_RATE
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.limits import MAX_OUTPUT_TOKENS, NAME_RULE


class KeysSettings(ConsoleSettings):
    """The keys of a file, or those in Redis."""

    api_keys_file: Path | None = Field(None, description="The file of keys; none: they are in Redis.")


class NewKeySettings(KeysSettings):
    """Make an API key. It is printed once; what is kept is its SHA-256 and what it allows."""

    tenant: str = Field(pattern=NAME, json_schema_extra={"allowed": NAME_RULE}, description="Whose requests they are.")
    name: str | None = Field(None, max_length=128, description="What people call the key.")
    classes: list[PriorityClass] | None = Field(
        None, min_length=1, description="Priority classes that it may ask for; none: all."
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_OUTPUT_TOKENS, description="Longest answer that it may ask for; none: any. [tokens]"
    )
    requests_per_minute: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Most requests that its tenant may send in a minute; none: any. [requests]"
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=MAX_RATE,
        description="Most requests of its tenant that may wait and run at once; none: any. [requests]",
    )
    queue_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Part of a class's bounds that its tenant may take; none: the gateway's `max_tenant_share`.",
    )
    expires_in_s: int | None = Field(None, ge=1, description="How long it counts; none: until it is revoked. [s]")


class RevokeSettings(KeysSettings):
    """Take a key back: gateways refuse it after their next look, `api_keys_reload_s`."""

    sha256: CliPositionalArg[str] = Field(
        pattern="^[0-9a-f]{8,64}$",
        json_schema_extra={"allowed": "8 to 64 characters of 0-9 a-f"},
        description="Its SHA-256 as `list` prints it, or the beginning of it.",
    )
