"""Settings of logs and telemetry: those that gateway and worker share, and the standard OTEL_ variables."""

import math
import os
import re
from importlib.metadata import entry_points
from typing import Final, Literal, Self

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

LogForm = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Signal = Literal["traces", "metrics", "logs"]

EXPORTERS: Final = ("otlp", "console", "none")
PROTOCOLS: Final = ("http/protobuf", "grpc")
_PROPAGATORS: Final = "OTEL_PROPAGATORS"
_USER_INFO: Final = re.compile(r"^([\w+]+://)?.*@", re.DOTALL)
"""Matches what precedes the host of a URL, with or without a scheme."""
SAMPLERS: Final = (
    *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
    *("always_on", "always_off", "traceidratio"),
)


class LogSettings(BaseSettings):
    """Settings of a process's logs."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    log_level: LogLevel = Field(
        "info",
        description="Least severe level logged; info: events of the process; debug: also events of each request.",
    )
    log_form: LogForm = Field("text", description="Format of log lines.")
    log_content: bool = Field(
        False, description="Include unexpected errors' messages in logs and traces; they may quote prompts and answers."
    )


class UnusableTelemetry(ValueError):
    """Telemetry that cannot be set up as configured; the message names the variable, its value and what is allowed."""


class OtelSettings(BaseSettings):
    """The standard OTEL_ variables that decide which signals leave the process, and how.

    OpenTelemetry's SDK itself reads all others (headers, timeouts, queue sizes, the resource). These are environment
    variables only: no flags, no lines of .env.
    """

    model_config = SettingsConfigDict(env_prefix="OTEL_", env_ignore_empty=True, extra="ignore", frozen=True)

    sdk_disabled: str = Field("", description="true: no signal leaves the process, whatever else is set.")
    traces_exporter: str | None = None
    metrics_exporter: str | None = None
    logs_exporter: str | None = None
    exporter_otlp_endpoint: str | None = None
    exporter_otlp_traces_endpoint: str | None = None
    exporter_otlp_metrics_endpoint: str | None = None
    exporter_otlp_logs_endpoint: str | None = None
    exporter_otlp_metrics_temporality_preference: str = "cumulative"
    exporter_otlp_protocol: str = "http/protobuf"
    exporter_otlp_traces_protocol: str | None = None
    exporter_otlp_metrics_protocol: str | None = None
    exporter_otlp_logs_protocol: str | None = None
    traces_sampler: str = SAMPLERS[0]
    traces_sampler_arg: str | None = None
    metric_export_interval: str | None = None

    @classmethod
    def read(cls) -> Self:
        """Read the variables. Raises UnusableTelemetry if one of them is unusable."""
        settings = cls()
        for signal in ("traces", "metrics", "logs"):
            if "otlp" in settings.exporters(signal):
                settings.protocol(signal)
        if settings.exporters("traces"):
            settings._check_sampler()
        if settings.exporters("metrics"):
            settings._check_interval()
        return settings

    @property
    def disabled(self) -> bool:
        """Whether all telemetry is off."""
        return self.sdk_disabled.strip().lower() == "true"

    @property
    def histograms_as_deltas(self) -> bool:
        """Whether each export reports the change since the previous one."""
        return self.exporter_otlp_metrics_temporality_preference.strip().lower() in ("delta", "lowmemory")

    def exporters(self, signal: Signal) -> tuple[str, ...]:
        """Return the exporters of a signal; the default is OTLP if an endpoint is set."""
        if self.disabled:
            return ()
        asked: str | None = getattr(self, f"{signal}_exporter")
        if asked is None:
            own = getattr(self, f"exporter_otlp_{signal}_endpoint")
            return ("otlp",) if own or self.exporter_otlp_endpoint else ()
        names = tuple(dict.fromkeys(name.strip() for name in asked.split(",")))
        for name in names:
            if name not in EXPORTERS:
                raise UnusableTelemetry(f"OTEL_{signal.upper()}_EXPORTER: got {name!r}, allowed: {_allowed(name)}")
        return tuple(name for name in names if name != "none")

    def protocol(self, signal: Signal) -> str:
        """Return the OTLP protocol. Raises UnusableTelemetry if it is unknown or does not match the endpoint."""
        own: str | None = getattr(self, f"exporter_otlp_{signal}_protocol")
        variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL" if own else "OTEL_EXPORTER_OTLP_PROTOCOL"
        protocol = (own or self.exporter_otlp_protocol).strip()
        if protocol not in PROTOCOLS:
            raise UnusableTelemetry(f"{variable}: got {protocol!r}, allowed: {', '.join(PROTOCOLS)}")
        if protocol == "http/protobuf":
            self._check_url(signal)
        return protocol

    def _check_sampler(self) -> None:
        """Check the sampler: the SDK would sample every trace if it does not know the name."""
        if self.traces_sampler.lower() not in SAMPLERS:
            raise UnusableTelemetry(f"OTEL_TRACES_SAMPLER: got {self.traces_sampler!r}, allowed: {', '.join(SAMPLERS)}")
        if self.traces_sampler_arg is not None and "ratio" in self.traces_sampler.lower():
            try:
                is_share = 0 <= float(self.traces_sampler_arg) <= 1
            except ValueError:
                is_share = False
            if not is_share:
                raise UnusableTelemetry(
                    f"OTEL_TRACES_SAMPLER_ARG: got {self.traces_sampler_arg!r}, allowed: a share from 0 to 1"
                )

    def _check_interval(self) -> None:
        """Check the interval: the SDK would take a minute for a non-number, and not name the variable in an error."""
        given = self.metric_export_interval
        try:
            is_time = given is None or 0 < float(given) < math.inf
        except ValueError:
            is_time = False
        if not is_time:
            raise UnusableTelemetry(f"OTEL_METRIC_EXPORT_INTERVAL: got {given!r}, allowed: milliseconds above 0")

    def _check_url(self, signal: Signal) -> None:
        own: str | None = getattr(self, f"exporter_otlp_{signal}_endpoint")
        variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
        url = own or self.exporter_otlp_endpoint
        if url is not None and not url.lower().startswith(("http://", "https://")):
            told = _USER_INFO.sub(r"\1***@", url)
            raise UnusableTelemetry(
                f"{variable}: got {told!r}, allowed: a URL that begins with http:// or https:// (or set "
                "OTEL_EXPORTER_OTLP_PROTOCOL=grpc)"
            )


def settle_propagators() -> None:
    """Check OTEL_PROPAGATORS before FastAPI is imported, which loads the propagators even without telemetry.

    Raises UnusableTelemetry if traces are on and a propagator is not installed; without traces none is needed.
    """
    asked = [name.strip() for name in os.environ.get(_PROPAGATORS, "").split(",")]
    installed = {entry.name for entry in entry_points(group="opentelemetry_propagator")} | {"none"}
    missing = [name for name in asked if name and name not in installed]
    if not missing:
        return
    if OtelSettings.read().exporters("traces"):
        raise UnusableTelemetry(
            f"{_PROPAGATORS}: got {missing[0]!r}, allowed: {', '.join(sorted(installed))}; others must be installed"
        )
    os.environ[_PROPAGATORS] = "none"


def _allowed(asked: str) -> str:
    allowed = ", ".join(EXPORTERS)
    if asked == "prometheus":
        allowed += "; for Prometheus, set metrics (ORCASTREAM_METRICS) of a gateway, admin_port of a worker"
    return allowed
