"""Everything about a gateway that can be set."""

from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from broker.settings import BrokerSettings
from schemas.keys import check_name
from schemas.limits import MAX_DEADLINE_AHEAD_MS, MAX_PAYLOAD_BYTES
from telemetry.settings import LogSettings

_MAX_TIMEOUT_S = MAX_DEADLINE_AHEAD_MS / 1000


class GatewaySettings(BrokerSettings, LogSettings):
    """Settings of one gateway process, from arguments, `ORCASTREAM_*` in the environment, or `.env`."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0: any free one.")
    api_keys: dict[SecretStr, str] = Field(
        default_factory=dict,
        description="API key → tenant, as a JSON object; empty: no key is asked for, the tenant is `default`.",
    )
    max_body_bytes: int = Field(
        MAX_PAYLOAD_BYTES, ge=1024, le=1024**3, description="Largest request body; a larger one gets 413. [bytes]"
    )
    max_model_len: int | None = Field(
        None, ge=2, le=10_000_000, description="Lowers the context that the model's configuration states. [tokens]"
    )
    default_timeout_s: float = Field(
        600.0, gt=0, le=_MAX_TIMEOUT_S, description="Time until a request expires that names no `timeout`. [s]"
    )
    max_timeout_s: float = Field(
        3600.0, gt=0, le=_MAX_TIMEOUT_S, description="Longest `timeout` that a request may name. [s]"
    )
    keep_alive_s: float = Field(
        15.0, gt=0, le=3600, description="A stream that is silent for this long gets a comment. [s]"
    )
    disconnect_grace_s: float = Field(
        2.0, ge=0, le=3600, description="Time for a lost client to come back before its request is cancelled. [s]"
    )
    loss_check_s: float = Field(
        5.0, gt=0, le=3600, description="A reply without events for this long is checked for being lost. [s]"
    )
    sweep_s: float = Field(1.0, gt=0, le=3600, description="Pause between two searches for overdue requests. [s]")
    redis_patience_s: float = Field(
        5.0, ge=0, le=600, description="How long a request waits for Redis to come back before it gets 503. [s]"
    )
    shutdown_grace_s: float = Field(
        5.0, ge=0, le=3600, description="Time for open streams to end when the gateway is told to stop. [s]"
    )
    require_worker: bool = Field(
        True,
        description="Refuse requests with 503 while no worker of the model lives; false where they scale from zero.",
    )
    access_log: bool = Field(False, description="Log every HTTP request (uvicorn's access log).")
    metrics: bool = Field(False, description="Serve metrics for Prometheus at /metrics of the gateway's own port.")

    @field_validator("api_keys")
    @classmethod
    def _tenants_are_names(cls, api_keys: dict[SecretStr, str]) -> dict[SecretStr, str]:
        for key, tenant in api_keys.items():
            check_name(tenant, "api_keys")
            text = key.get_secret_value()
            if not text or not all("!" <= char <= "~" for char in text):
                raise ValueError(f"a key of tenant {tenant}: allowed: printable ASCII characters without spaces")
        return api_keys

    @model_validator(mode="after")
    def _default_within_max(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s: got {self.default_timeout_s}, allowed: at most max_timeout_s")
        return self
