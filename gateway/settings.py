"""Everything about a gateway that can be set."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from broker.settings import BrokerSettings
from schemas.keys import check_name
from schemas.limits import MAX_DEADLINE_AHEAD_MS, MAX_PAYLOAD_BYTES
from telemetry.settings import LogSettings

_MAX_TIMEOUT_S = MAX_DEADLINE_AHEAD_MS / 1000
_LAST_PORT = 65535


class GatewaySettings(BrokerSettings, LogSettings):
    """Settings of one gateway process, from arguments, `ORCASTREAM_*` in the environment, or `.env`."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=_LAST_PORT, description="TCP port to listen on; 0: any free one.")
    gateway_workers: int = Field(
        1, ge=1, le=256, description="Gateway processes on the one port; --workers of `orcastream gateway`. [processes]"
    )
    process_port: int | None = Field(
        None,
        ge=1,
        le=_LAST_PORT,
        description="First of the ports that gateway processes have of their own, beside the shared one; none: none.",
    )
    api_keys: dict[SecretStr, str] = Field(
        default_factory=dict,
        description="API key → tenant, as a JSON object, for development; no keys anywhere: the tenant is `default`.",
    )
    api_keys_file: Path | None = Field(
        None, description="File of hashed API keys and what they allow, as `orcastream keys new` writes it."
    )
    api_keys_in_redis: bool = Field(
        False, description="Take hashed API keys from Redis, where `orcastream keys new` puts them."
    )
    api_keys_reload_s: float = Field(
        2.0, gt=0, le=3600, description="Pause between two looks at the file, or at Redis, for changed keys. [s]"
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
    max_queue_tokens: int | None = Field(
        10_000_000,
        ge=1,
        description="Most tokens, prompts and longest answers, that waiting and running requests of one class ask for; "
        "beyond that: 429. [tokens]",
    )
    max_wait_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Part of the time up to its deadline that a request may be expected to wait; beyond that: 429.",
    )
    max_wait_s: float | None = Field(
        None, gt=0, le=_MAX_TIMEOUT_S, description="Longest wait to be expected, whatever the deadline; none: any. [s]"
    )
    keep_alive_s: float = Field(
        15.0, gt=0, le=3600, description="A stream that is silent for this long gets a comment. [s]"
    )
    disconnect_grace_s: float = Field(
        2.0, ge=0, le=3600, description="Time for a lost client to come back before its request is cancelled. [s]"
    )
    gateway_lease_s: float = Field(
        8.0, ge=3, le=3600, description="A gateway that was not heard of for this long is dead, its clients gone. [s]"
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
    metrics: bool = Field(
        False,
        description="Serve metrics for Prometheus at /metrics of port, or of process_port if that is set.",
    )

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
    def _keys_come_from_one_place(self) -> Self:
        if sum((bool(self.api_keys), self.api_keys_file is not None, self.api_keys_in_redis)) > 1:
            raise ValueError("api_keys, api_keys_file, api_keys_in_redis: got several, allowed: one of them")
        return self

    @model_validator(mode="after")
    def _each_process_has_its_metrics(self) -> Self:
        if self.metrics and self.gateway_workers > 1 and self.process_port is None:
            raise ValueError("process_port: got none, allowed with metrics of several gateway_workers: a port")
        if self.process_port is not None:
            last = self.process_port + self.gateway_workers - 1
            if last > _LAST_PORT or self.process_port <= self.port <= last:
                raise ValueError(
                    f"process_port: got {self.process_port}, allowed: {self.gateway_workers} ports from it on, up to "
                    f"{_LAST_PORT}, none of them the gateway's ({self.port})"
                )
        return self

    @model_validator(mode="after")
    def _default_within_max(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s: got {self.default_timeout_s}, allowed: at most max_timeout_s")
        return self
