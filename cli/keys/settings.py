"""Settings of the commands for API keys."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from orcastream.broker.settings import NAME
from orcastream.cli.console.settings import ConsoleSettings
from orcastream.gateway.admission.api_key import MAX_RATE
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.limits import MAX_OUTPUT_TOKENS, NAME_RULE


class KeysSettings(ConsoleSettings):
    """Select the keys: those of a file, or those in Redis."""

    from_environment = ConsoleSettings.from_environment | {"api_keys_file"}

    api_keys_file: Path | None = Field(None, description="File of the keys; none: they are in Redis.")


class NewKeySettings(KeysSettings):
    """Create an API key. It is printed once; only its SHA-256 and what it allows are stored."""

    tenant: str = Field(pattern=NAME, json_schema_extra={"allowed": NAME_RULE}, description="Tenant of its requests.")
    name: str | None = Field(None, max_length=128, description="Name of the key, for people.")
    classes: list[PriorityClass] | None = Field(
        None, min_length=1, description="Priority classes that the key may use; none: all."
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_OUTPUT_TOKENS, description="Longest answer that the key may ask for; none: any. [tokens]"
    )
    requests_per_minute: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Most requests that its tenant may send per minute; none: any. [requests]"
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=MAX_RATE,
        description="Most requests of its tenant that may wait or run at once; none: any. [requests]",
    )
    queue_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a class's bounds for its tenant; none: the gateway's `max_tenant_share`.",
    )
    expires_in_s: int | None = Field(None, ge=1, description="How long it is valid; none: until it is revoked. [s]")


class RevokeSettings(KeysSettings):
    """Revoke a key: gateways refuse it after their next reload (`api_keys_reload_s`)."""

    sha256: CliPositionalArg[str] = Field(
        pattern="^[0-9a-f]{8,64}$",
        json_schema_extra={"allowed": "8 to 64 characters of 0-9 a-f"},
        description="The key's SHA-256 as `list` prints it, or the first digits of it.",
    )
