"""Settings that every process talking to Redis shares; the worker's and the gateway's extend them."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.keys import DEFAULT_NAMESPACE, Keys
from schemas.limits import NAME_PATTERN

NAME = f"^(?:{NAME_PATTERN.pattern})$"


class BrokerSettings(BaseSettings):
    """Where Redis is, which model is served, and the times that all processes must agree on."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
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
