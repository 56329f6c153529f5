"""The settings of a gateway."""

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from orcastream.broker.settings import BrokerSettings
from orcastream.gateway.admission.answer_formats import ReasoningParserName, ToolParserName
from orcastream.gateway.model_source import ModelSource
from orcastream.schemas.keys import check_name
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS, MAX_PAYLOAD_BYTES
from orcastream.telemetry.settings import LogSettings

_MAX_TIMEOUT_S = MAX_DEADLINE_AHEAD_MS / 1000
_LAST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.\-]*[A-Za-z0-9])?")
_ORIGIN = re.compile(r"null|https?://[a-z0-9_.\-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")


class GatewaySettings(BrokerSettings, LogSettings):
    """Settings of one gateway process, from arguments, `ORCASTREAM_*` in the environment, or `.env`."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=_LAST_PORT, description="TCP port to listen on; 0: any free one.")
    gateway_workers: int = Field(
        1,
        ge=1,
        le=256,
        description="Gateway processes that share the port; --workers of `orcastream gateway`. [processes]",
    )
    process_port: int | None = Field(
        None,
        ge=1,
        le=_LAST_PORT,
        description="First of the gateway processes' own ports, one per process, in addition to the shared port; "
        "none: none.",
    )
    more_models: tuple[str, ...] = Field(
        (),
        description="Models that the gateway serves in addition to `model`, each with its own workers: NAME=PATH, or "
        "a directory or hub id that ends in the name; as a JSON array.",
    )
    api_keys: dict[SecretStr, str] = Field(
        default_factory=dict,
        description="API key → tenant, as a JSON object, for development; no keys anywhere: the tenant is `default`.",
    )
    api_keys_file: Path | None = Field(
        None, description="File of hashed API keys and their permissions, as written by `orcastream keys new`."
    )
    api_keys_in_redis: bool = Field(
        False, description="Read hashed API keys from Redis, where `orcastream keys new` stores them."
    )
    api_keys_reload_s: float = Field(
        2.0, gt=0, le=3600, description="Interval between checks of the file, or of Redis, for changed keys. [s]"
    )
    max_body_bytes: int = Field(
        MAX_PAYLOAD_BYTES, ge=1024, le=1024**3, description="Largest request body; a larger one gets 413. [bytes]"
    )
    max_bodies_bytes: int = Field(
        256 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum size of all bodies being received or parsed at once; beyond that: 503. [bytes]",
    )
    max_kept_bytes: int = Field(
        64 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum size of one tenant's stored responses, not counting their replies; beyond that, those "
        "that expire first are dropped. [bytes]",
    )
    max_file_bytes: int = Field(
        64 * 1024**2, ge=1024, le=1024**3, description="Largest file in /v1/files; a larger one gets 413. [bytes]"
    )
    max_files_bytes: int = Field(
        512 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum size of a tenant's files in Redis, including those written by batches; beyond that: 429. "
        "[bytes]",
    )
    max_files: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Maximum number of a tenant's files, counted as in `max_files_bytes`. [files]",
    )
    files_retention_s: float = Field(
        604_800.0,
        ge=3600,
        le=2_592_000,
        description="How long files are kept, and batches after their completion window. [s]",
    )
    max_batch_lines: int = Field(
        50_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of requests in one batch; a batch with more fails. [requests]",
    )
    max_batches: int = Field(
        16, ge=1, le=10_000, description="Maximum number of a tenant's unfinished batches; beyond that: 429. [batches]"
    )
    batch_window: int = Field(
        64,
        ge=1,
        le=10_000,
        description="Maximum number of one batch's waiting and running requests: a small part of `max_queue_depth`. "
        "[requests]",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        le=1_000_000,
        description="Maximum number of connections per process; a new one replaces an idle one, or gets 503. "
        "[connections]",
    )
    header_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="Time for a client to send a request's headers; then 408. [s]"
    )
    body_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Time for a client to send a request's body; then 408. [s]"
    )
    idle_timeout_s: float = Field(
        75.0,
        gt=0,
        le=3600,
        description="A connection without a request for this long is closed; a stream is never idle. [s]",
    )
    write_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="A client that reads nothing from a full buffer for this long is disconnected. [s]",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names that clients may use in Host; a leading `*.` matches all subdomains, `*` any name; none: "
        "any, or only `localhost` if `host` is a loopback address. Addresses and `localhost` are always allowed.",
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may use the API, e.g. https://example.com; `*` for any; none: only the "
        "gateway's own.",
    )
    max_model_len: int | None = Field(
        None, ge=2, le=10_000_000, description="Lowers the context length of the model's configuration. [tokens]"
    )
    tool_parser: ToolParserName = Field(
        "auto",
        description="Format of the model's tool calls: `hermes` (Hermes, Qwen2.5, Qwen3) or `llama` (Llama 3.1 and "
        "later); `auto`: as its chat template indicates; `none`: requests with tools are refused.",
    )
    reasoning_parser: ReasoningParserName = Field(
        "auto",
        description="Format of the model's reasoning before the answer: `think`, between `<think>` and `</think>`; "
        "`auto`: as its chat template indicates; `none`: reasoning is treated as content.",
    )
    default_timeout_s: float = Field(
        600.0, gt=0, le=_MAX_TIMEOUT_S, description="Time until a request without `timeout` expires. [s]"
    )
    max_timeout_s: float = Field(
        3600.0, gt=0, le=_MAX_TIMEOUT_S, description="Longest `timeout` that a request may set. [s]"
    )
    max_queue_tokens: int | None = Field(
        10_000_000,
        ge=1,
        description="Maximum number of tokens that one class's waiting and running requests may ask for, prompts plus "
        "longest answers; beyond that: 429. [tokens]",
    )
    max_tenant_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Part of `max_queue_depth` and `max_queue_tokens` that a tenant's waiting and running requests of "
        "all classes may use, if API keys distinguish tenants; beyond that: 429.",
    )
    max_wait_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Part of the time until its deadline that a request may be expected to wait; beyond that: 429.",
    )
    max_wait_s: float | None = Field(
        None, gt=0, le=_MAX_TIMEOUT_S, description="Longest expected wait, whatever the deadline; none: any. [s]"
    )
    keep_alive_s: float = Field(
        15.0, gt=0, le=3600, description="A stream that is silent for this long gets an empty line. [s]"
    )
    disconnect_grace_s: float = Field(
        2.0, ge=0, le=3600, description="Time for a disconnected client to return before its request is cancelled. [s]"
    )
    gateway_lease_s: float = Field(
        8.0,
        ge=3,
        le=3600,
        description="A gateway not heard from for this long counts as dead, and its clients as disconnected. [s]",
    )
    loss_check_s: float = Field(
        5.0, gt=0, le=3600, description="A reply without events for this long is checked for loss. [s]"
    )
    sweep_s: float = Field(1.0, gt=0, le=3600, description="Interval between searches for overdue requests. [s]")
    redis_patience_s: float = Field(
        5.0,
        ge=0,
        le=600,
        description="How long a request waits for Redis to return, and then for previously seen workers to reappear, "
        "before it gets 503. [s]",
    )
    shutdown_grace_s: float = Field(
        5.0, ge=0, le=3600, description="Time for open streams to end when the gateway stops. [s]"
    )
    require_worker: bool = Field(
        True,
        description="Refuse requests with 503 while the model has no live worker; set false if workers scale from "
        "zero.",
    )
    console: bool = Field(
        True, description="Serve the console at /console; its data requires an API key if keys are configured."
    )
    access_log: bool = Field(False, description="Log every HTTP request (uvicorn's access log).")
    metrics: bool = Field(
        False,
        description="Serve metrics for Prometheus at /metrics on port, or on process_port if that is set.",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not _HOST.fullmatch(name.removeprefix("*.")):
                raise ValueError(f"names without port, such as api.example.com, *.example.com, or *; not {name!r}")
        return names

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_such(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"scheme, name and optional port, such as https://example.com, or *; not {origin!r}")
        return origins

    @field_validator("api_keys")
    @classmethod
    def _tenants_are_names(cls, api_keys: dict[SecretStr, str]) -> dict[SecretStr, str]:
        for key, tenant in api_keys.items():
            check_name(tenant, "api_keys")
            text = key.get_secret_value()
            if not text or not all("!" <= char <= "~" for char in text):
                raise ValueError(f"keys of printable ASCII characters without spaces; tenant {tenant} has another")
        return api_keys

    @model_validator(mode="after")
    def _models_have_names_of_their_own(self) -> Self:
        names = [source.name for source in self.sources()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"more_models: got the name {name!r} twice, allowed: one model of each name")
        return self

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
                    f"process_port: got {self.process_port}, allowed: a port from which {self.gateway_workers} ports "
                    f"follow, up to {_LAST_PORT}, none of them the gateway's ({self.port})"
                )
        return self

    @model_validator(mode="after")
    def _one_body_has_room(self) -> Self:
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ValueError(f"max_bodies_bytes: got {self.max_bodies_bytes}, allowed: at least max_body_bytes")
        return self

    @model_validator(mode="after")
    def _one_file_has_room(self) -> Self:
        if self.max_files_bytes < self.max_file_bytes:
            raise ValueError(f"max_files_bytes: got {self.max_files_bytes}, allowed: at least max_file_bytes")
        return self

    @model_validator(mode="after")
    def _default_within_max(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s: got {self.default_timeout_s}, allowed: at most max_timeout_s")
        return self

    def sources(self) -> list[ModelSource]:
        """Return the models to serve, the default one first."""
        first = ModelSource(self.served_name, self.model, self.max_model_len, is_default=True)
        return [first, *map(ModelSource.parse, self.more_models)]
