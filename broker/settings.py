"""Settings that every process talking to Redis shares; the worker's and the gateway's extend them."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS, Connection, parse_url
from redis.exceptions import RedisError

from schemas.keys import DEFAULT_NAMESPACE, Keys
from schemas.limits import NAME_PATTERN

NAME = f"^(?:{NAME_PATTERN.pattern})$"
_REDIS_URL = (
    "redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// alike, or unix:///PATH[?db=DB], with redis-py's parameters "
    "and with special characters percent-encoded"
)
_URL_PARAMETERS = frozenset({"username", "password", *URL_QUERY_ARGUMENT_PARSERS})
"""Beside `ssl_...`; redis-py's others cannot be said in text."""
_POOL_PARAMETERS = ("max_connections", "timeout")


class BrokerSettings(BaseSettings):
    """Where Redis is, which model is served, and the times that all processes must agree on."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    redis_url: str | None = Field(
        None, description="redis://, rediss:// or unix:// URL with user, password and db; none: the embedded server."
    )
    namespace: str = Field(DEFAULT_NAMESPACE, pattern=NAME, description="First part of every key.")
    model: str = Field("", description="Directory or hub id of the model; empty: the demo model.")
    served_model_name: str | None = Field(
        None,
        pattern=NAME,
        description="Name under which the model is served and its queue is kept; none: from `model`.",
    )
    lease_ms: int = Field(
        5000, ge=500, le=600_000, description="A worker that renews nothing for this long loses its requests. [ms]"
    )
    retention_s: float = Field(
        600.0, ge=1, le=604_800, description="How long the reply log of a finished request can still be read. [s]"
    )
    max_queue_depth: int = Field(
        1000, ge=1, le=10_000_000, description="Most requests waiting and running; beyond that: queue full. [requests]"
    )
    max_deliveries: int = Field(
        3, ge=1, le=100, description="Attempts without a new token before a request becomes a dead letter. [attempts]"
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_can_be_reached_by(cls, url: str | None) -> str | None:
        if url is not None and not _is_redis_url(url):
            raise ValueError(_REDIS_URL)
        return url

    @property
    def served_name(self) -> str:
        """The name that stands in keys and in the API: `served_model_name`, or the last part of `model`."""
        return self.served_model_name or self.model.rstrip("/").rpartition("/")[2]

    @property
    def retention_ms(self) -> int:
        """`retention_s` in milliseconds."""
        return int(self.retention_s * 1000)

    def keys(self) -> Keys:
        """The keys of the served model; InvalidRequest where its name cannot stand in a key."""
        return Keys(self.served_name, self.namespace)


def _is_redis_url(url: str) -> bool:
    """Can redis-py make a connection of all that it says? What redis-py would pass over in silence is refused, too."""
    try:
        parts = urlsplit(url)
        options: dict[str, Any] = dict(parse_url(url))
        for name in _POOL_PARAMETERS:
            options.pop(name, None)
        connection_class = options.pop("connection_class", Connection)
        connection_class(**options)
        port = parts.port
    except (AttributeError, TypeError, ValueError, RedisError):
        return False
    parameters = parse_qs(parts.query, keep_blank_values=True)
    if not all(name in _URL_PARAMETERS or name.startswith("ssl_") for name in parameters):
        return False
    if parts.scheme == "unix":
        return not parts.hostname and bool(parts.path.strip("/"))
    db = parts.path.strip("/")
    return port != 0 and options.get("db", 0) >= 0 and (not db or db.isdecimal())
