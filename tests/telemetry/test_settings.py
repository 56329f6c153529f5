"""Which signals the process exports, according to the standard variables."""

import pytest

from orcastream.telemetry.settings import OtelSettings, Signal, UnusableTelemetry

ENDPOINT = {"EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for name, value in request.param.items():
        monkeypatch.setenv(f"OTEL_{name}", value)


def _signals() -> dict[Signal, tuple[str, ...]]:
    settings = OtelSettings.read()
    return {signal: names for signal in ("traces", "metrics", "logs") if (names := settings.exporters(signal))}


@pytest.mark.parametrize(
    ("environment", "signals"),
    [
        ({}, {}),
        ({"SERVICE_NAME": "mine", "TRACES_SAMPLER": "always_on"}, {}),
        (ENDPOINT, {"traces": ("otlp",), "metrics": ("otlp",), "logs": ("otlp",)}),
        ({**ENDPOINT, "LOGS_EXPORTER": "none"}, {"traces": ("otlp",), "metrics": ("otlp",)}),
        ({"EXPORTER_OTLP_LOGS_ENDPOINT": "http://collector/v1/logs"}, {"logs": ("otlp",)}),
        ({"TRACES_EXPORTER": "otlp, console", "METRICS_EXPORTER": ""}, {"traces": ("otlp", "console")}),
        ({**ENDPOINT, "SDK_DISABLED": "True"}, {}),
    ],
    indirect=["environment"],
)
def test_signals_are_exported_if_an_exporter_or_an_endpoint_is_set(
    environment: None, signals: dict[Signal, tuple[str, ...]]
) -> None:
    assert _signals() == signals


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: got 'zipkin', allowed: otlp, console, none"),
        (
            {"METRICS_EXPORTER": "prometheus"},
            "OTEL_METRICS_EXPORTER: got 'prometheus', .*ORCASTREAM_METRICS.*admin_port",
        ),
        (
            {**ENDPOINT, "EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: got 'http/json', allowed: http/protobuf, grpc",
        ),
        (
            {**ENDPOINT, "EXPORTER_OTLP_METRICS_PROTOCOL": "udp"},
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: got 'udp', allowed: http/protobuf, grpc",
        ),
        (
            {**ENDPOINT, "TRACES_SAMPLER": "half"},
            "OTEL_TRACES_SAMPLER: got 'half', allowed: parentbased_always_on, .*traceidratio",
        ),
        (
            {**ENDPOINT, "TRACES_SAMPLER": "always_off "},
            "OTEL_TRACES_SAMPLER: got 'always_off ', allowed: parentbased_always_on",
        ),
        (
            {**ENDPOINT, "TRACES_SAMPLER": "traceidratio", "TRACES_SAMPLER_ARG": "5"},
            "OTEL_TRACES_SAMPLER_ARG: got '5', allowed: a share from 0 to 1",
        ),
        (
            {**ENDPOINT, "TRACES_SAMPLER": "parentbased_traceidratio", "TRACES_SAMPLER_ARG": "few"},
            "OTEL_TRACES_SAMPLER_ARG: got 'few', allowed: a share from 0 to 1",
        ),
        (
            {**ENDPOINT, "METRIC_EXPORT_INTERVAL": "a minute"},
            "OTEL_METRIC_EXPORT_INTERVAL: got 'a minute', allowed: milliseconds above 0",
        ),
        (
            {**ENDPOINT, "METRIC_EXPORT_INTERVAL": "0"},
            "OTEL_METRIC_EXPORT_INTERVAL: got '0', allowed: milliseconds above 0",
        ),
        (
            {"EXPORTER_OTLP_ENDPOINT": "collector:4317"},
            "OTEL_EXPORTER_OTLP_ENDPOINT: got 'collector:4317', allowed: a URL that begins with http://",
        ),
        (
            {"EXPORTER_OTLP_ENDPOINT": "user:sw@ord@collector:4317"},
            r"OTEL_EXPORTER_OTLP_ENDPOINT: got '\*\*\*@collector:4317', allowed",
        ),
        (
            {"EXPORTER_OTLP_ENDPOINT": "grpc://user:sw/ord@collector:4317"},
            r"OTEL_EXPORTER_OTLP_ENDPOINT: got 'grpc://\*\*\*@collector:4317', allowed",
        ),
    ],
    indirect=["environment"],
)
def test_unsupported_values_are_refused_by_name(environment: None, complaint: str) -> None:
    with pytest.raises(UnusableTelemetry, match=complaint):
        OtelSettings.read()
