"""Settings that every process talking to Redis shares; the worker's and the gateway's extend them."""

from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from orcastream.broker.address import RedisAddress, is_encrypted
from orcastream.schemas.keys import DEFAULT_NAMESPACE, Keys
from orcastream.schemas.limits import MAX_QUEUE_LANES, NAME_PATTERN, NAME_RULE

NAME = f"^(?:{NAME_PATTERN.pattern})$"
_TLS_FILES = {"redis_ca_file": "ssl_ca_certs", "redis_cert_file": "ssl_certfile", "redis_key_file": "ssl_keyfile"}
"""Settings, and the equivalent URL parameters."""


class BrokerSettings(BaseSettings):
    """The address of Redis, the served model, and the times that all processes must agree on."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    redis_url: str | None = Field(
        None,
        description="redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster:// URL with user, password "
        "and db; none: the embedded server.",
    )
    redis_ca_file: Path | None = Field(
        None, description="CA certificates that verify the certificate of Redis, PEM; none: those of the system."
    )
    redis_cert_file: Path | None = Field(
        None, description="Certificate presented to Redis, PEM, with its intermediate ones; none: no certificate."
    )
    redis_key_file: Path | None = Field(
        None, description="Private key of `redis_cert_file`, PEM, unencrypted; none: it is in that file."
    )
    namespace: str = Field(
        DEFAULT_NAMESPACE,
        pattern=NAME,
        json_schema_extra={"allowed": NAME_RULE},
        description="First part of every key.",
    )
    model: str = Field("", description="Directory or hub id of the model; empty: the demo model.")
    served_model_name: str | None = Field(
        None,
        pattern=NAME,
        json_schema_extra={"allowed": NAME_RULE},
        description="Name of the served model, in the API and in its queue's keys; none: from `model`.",
    )
    queue_lanes: int = Field(
        1,
        ge=1,
        le=MAX_QUEUE_LANES,
        description="Parts of the model's queue, each in its own slot of a Redis Cluster; gateways, workers and "
        "producers of the model must agree. [lanes]",
    )
    lease_ms: int = Field(
        5000, ge=500, le=600_000, description="A worker that renews no lease for this long loses its requests. [ms]"
    )
    retention_s: float = Field(
        600.0, ge=1, le=604_800, description="How long the reply log of a finished request remains readable. [s]"
    )
    max_queue_depth: int = Field(
        1000,
        ge=1,
        le=10_000_000,
        description="Most requests of one class waiting and running; more get 429. [requests]",
    )
    max_deliveries: int = Field(
        3, ge=1, le=100, description="Attempts without a new token before a request becomes a dead letter. [attempts]"
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_can_be_reached_by(cls, url: str | None) -> str | None:
        if url is not None:
            RedisAddress.parse(url)
        return url

    @field_validator(*_TLS_FILES)
    @classmethod
    def _can_be_read(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        try:
            path.open("rb").close()
        except OSError as error:
            raise ValueError(f"a file that can be read ({error.strerror})") from None
        return path.absolute()

    @model_validator(mode="after")
    def _files_are_used(self) -> Self:
        for name, parameter in _TLS_FILES.items():
            path = getattr(self, name)
            if path is None:
                continue
            if not self.redis_url or not is_encrypted(self.redis_url):
                raise ValueError(f"{name}: got {str(path)!r}, allowed: with a rediss:// URL as redis_url")
            if f"{parameter}=" in self.redis_url:
                raise ValueError(f"{name}: got {str(path)!r}, allowed: where redis_url has no {parameter}")
        if self.redis_key_file is not None and self.redis_cert_file is None:
            raise ValueError(f"redis_key_file: got {str(self.redis_key_file)!r}, allowed: with redis_cert_file")
        return self

    @property
    def connection_url(self) -> str | None:
        """`redis_url` with the TLS files as parameters: everything a connection needs."""
        files = {parameter: str(path) for name, parameter in _TLS_FILES.items() if (path := getattr(self, name))}
        if self.redis_url is None or not files:
            return self.redis_url
        return f"{self.redis_url}{'&' if '?' in self.redis_url else '?'}{urlencode(files)}"

    @property
    def served_name(self) -> str:
        """The name in keys and in the API: `served_model_name`, or the last part of `model`."""
        return self.served_model_name or self.model.rstrip("/").rpartition("/")[2]

    @property
    def retention_ms(self) -> int:
        """`retention_s` in milliseconds."""
        return int(self.retention_s * 1000)

    def keys(self) -> Keys:
        """Return the keys of the served model; raise InvalidRequest if its name cannot appear in a key."""
        return self.keys_of(self.served_name)

    def keys_of(self, model: str) -> Keys:
        """Return the keys of another model of the same service."""
        return Keys(model, self.namespace, self.queue_lanes)
