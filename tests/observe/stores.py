"""The telemetry stores of the Compose deployment: the collector with the shipped configuration, and the content of
Grafana's container.

In that container a separate collector passes metrics to Prometheus, traces to Tempo and logs to Loki, all over OTLP;
the same happens here. Grafana itself only queries these.
"""

import json
from pathlib import Path
from typing import Any, Final

from tests.observe.collector import SHIPPED, Collector
from tests.observe.programs import StorePrograms
from tests.observe.server_process import ServerProcess
from tests.ports import free_port

_HOST: Final = "127.0.0.1"


class Stores:
    """The stores; `url` accepts OTLP over HTTP. Metrics go to `metrics_url`, a Prometheus's own OTLP endpoint; traces
    also go to `traces_url`.
    """

    def __init__(self, programs: StorePrograms, directory: Path, *, metrics_url: str, traces_url: str) -> None:
        directory.mkdir(parents=True)
        traces_port = free_port()
        self._loki = _loki(programs.loki, directory)
        self._tempo = _tempo(programs.tempo, directory, traces_port)
        endpoints = {
            "metrics": metrics_url,
            "traces": f"http://{_HOST}:{traces_port}",
            "too": traces_url,
            "logs": f"{self._loki.url}/otlp",
        }
        inner = directory / "inner.yaml"
        inner.write_text(json.dumps(_inner(endpoints)))
        self._inner = Collector(programs.collector, inner, directory / "inner")
        environment = {"GRAFANA_OTLP_ENDPOINT": self._inner.url}
        self._collector = Collector(programs.collector, SHIPPED, directory / "collector", environment=environment)

    @property
    def url(self) -> str:
        """The URL for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return self._collector.url

    def wait_ready(self) -> None:
        """Wait until all of them accept data."""
        for collector in (self._inner, self._collector):
            collector.wait_ready()
        for store in (self._loki, self._tempo):
            store.wait_ready("/ready")

    def lines(self, query: str, begin_s: float) -> list[tuple[dict[str, str], str]]:
        """Return Loki's lines from `begin_s` (Unix time) on: labels and text of each."""
        parameters = {"query": query, "start": f"{begin_s:.0f}", "limit": "1000"}
        answer = self._loki.get("/loki/api/v1/query_range", **parameters)
        assert answer.status_code == 200, (parameters, answer.text)
        streams = answer.json()["data"]["result"]
        return [(stream["stream"], line) for stream in streams for _, line in stream["values"]]

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans that Tempo has of a trace, in OTLP's JSON; [] if it has none."""
        answer = self._tempo.get(f"/api/traces/{trace_id}")
        if answer.status_code == 404:
            return []
        assert answer.status_code == 200, answer.text
        groups = answer.json()["batches"]
        return [span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]]

    def kill(self) -> None:
        """Send SIGKILL to all."""
        for process in (self._collector, self._inner, self._loki, self._tempo):
            process.kill()


def _inner(endpoints: dict[str, str]) -> dict[str, Any]:
    """Return the configuration of the collector in Grafana's container."""

    def pipeline(*names: str) -> dict[str, list[str]]:
        return {"receivers": ["otlp"], "processors": ["batch"], "exporters": [f"otlp_http/{name}" for name in names]}

    pipelines = {"traces": pipeline("traces", "too"), "metrics": pipeline("metrics"), "logs": pipeline("logs")}
    return {
        "receivers": {"otlp": {}},
        "processors": {"batch": {}},
        "exporters": {f"otlp_http/{name}": {"endpoint": url} for name, url in endpoints.items()},
        "extensions": {"health_check": {}},
        "service": {"extensions": ["health_check"], "pipelines": pipelines},
    }


def _loki(program: str, directory: Path) -> ServerProcess:
    data, at_once = directory / "loki", {"lifecycler": {"min_ready_duration": "0s"}}
    index = {"prefix": "index_", "period": "24h"}
    schema = {"from": "2020-10-24", "store": "tsdb", "object_store": "filesystem", "schema": "v13", "index": index}
    config = {
        "auth_enabled": False,
        "analytics": {"reporting_enabled": False},
        "server": _server(),
        "common": {
            "instance_addr": _HOST,
            "path_prefix": str(data),
            "storage": {
                "filesystem": {"chunks_directory": str(data / "chunks"), "rules_directory": str(data / "rules")}
            },
            "replication_factor": 1,
            "ring": {"kvstore": {"store": "inmemory"}},
        },
        "schema_config": {"configs": [schema]},
        "ingester": at_once,
        "pattern_ingester": at_once,
        "frontend": {"scheduler_dns_lookup_period": "1s", "address": _HOST},
        "query_scheduler": {"use_scheduler_ring": False},
    }
    return _store(program, config, directory / "loki.yaml")


def _tempo(program: str, directory: Path, otlp_port: int) -> ServerProcess:
    data, server = directory / "tempo", _server()
    config = {
        "server": server,
        "distributor": {"receivers": {"otlp": {"protocols": {"http": {"endpoint": f"{_HOST}:{otlp_port}"}}}}},
        "memberlist": {"bind_addr": [_HOST], "bind_port": free_port()},
        "querier": {"frontend_worker": {"frontend_address": f"{_HOST}:{server['grpc_listen_port']}"}},
        "storage": {
            "trace": {"backend": "local", "wal": {"path": str(data / "wal")}, "local": {"path": str(data / "blocks")}}
        },
        "usage_report": {"reporting_enabled": False},
    }
    return _store(program, config, directory / "tempo.yaml")


def _server() -> dict[str, Any]:
    listens = {f"{kind}_listen_address": _HOST for kind in ("http", "grpc")}
    return {**listens, **{f"{kind}_listen_port": free_port() for kind in ("http", "grpc")}}


def _store(program: str, config: dict[str, Any], path: Path) -> ServerProcess:
    path.write_text(json.dumps(config))
    return ServerProcess(
        [program, f"-config.file={path}"], config["server"]["http_listen_port"], path.with_suffix(".log")
    )
