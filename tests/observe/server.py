"""A Prometheus server for the tests: it scrapes or receives metrics, and evaluates the shipped rules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.observe.server_process import ServerProcess
from tests.ports import free_port
from tests.telemetry.prometheus_binaries import Prometheus
from tests.telemetry.rules import RULES

_COMPOSE: Final = Path(__file__).parents[2] / "telemetry" / "grafana" / "prometheus.yaml"
Labels = dict[str, str]
Point = tuple[float, float]
"""Unix time in seconds, and value."""


@dataclass(frozen=True)
class Target:
    """A scrape target: its job, and HOST:PORT."""

    job: str
    address: str


class PrometheusServer:
    """Evaluates every `every_s`, and scrapes its targets as often; if `pushed`, it has no targets.

    A pushed server with OTLP support has the configuration from Compose.
    """

    def __init__(self, prometheus: Prometheus, directory: Path, every_s: float, *, pushed: bool) -> None:
        self.version = prometheus.version
        self.pushed = pushed
        self._directory = directory
        self._targets = directory / "targets.json"
        directory.mkdir(parents=True)
        self.scrape([])
        self._write_config(every_s, as_compose=pushed and prometheus.takes_otlp)
        flags = ["--web.enable-remote-write-receiver"] if pushed else []
        if pushed and prometheus.takes_otlp:
            flags.append("--web.enable-otlp-receiver")
        port = free_port()
        command = [
            prometheus.server,
            f"--config.file={directory / 'prometheus.json'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *flags,
        ]
        self._process = ServerProcess(command, port, directory / "log")

    @property
    def write_url(self) -> str:
        """The URL that samples are pushed to."""
        return f"{self._process.url}/api/v1/write"

    @property
    def otlp_url(self) -> str:
        """The URL for OTLP, for servers that support it."""
        return f"{self._process.url}/api/v1/otlp"

    @property
    def way(self) -> str:
        """How metrics reach the server."""
        return "OTLP" if self.pushed else "scraping"

    def _write_config(self, every_s: float, *, as_compose: bool) -> None:
        every = f"{every_s * 1000:.0f}ms"
        config: dict[str, Any] = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8")) if as_compose else {}
        config["global"] = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        config["rule_files"] = [str(RULES)]
        if not self.pushed:
            files = [{"files": [str(self._targets)], "refresh_interval": "1s"}]
            config["scrape_configs"] = [{"job_name": "orcastream", "file_sd_configs": files}]
        (self._directory / "prometheus.json").write_text(json.dumps(config))

    def scrape(self, targets: Sequence[Target]) -> None:
        """Scrape these targets from now on."""
        groups = [{"targets": [one.address], "labels": {"job": one.job}} for one in targets]
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps(groups))
        written.replace(self._targets)

    def wait_ready(self) -> None:
        """Wait until the server answers."""
        self._process.wait_ready("/-/ready")

    def query(self, expression: str, at_s: float | None = None) -> list[tuple[Labels, float]]:
        """Return the instant vector of `expression`. Raises AssertionError with Prometheus's message if it fails."""
        answer = self._get("query", {"query": expression, **({} if at_s is None else {"time": str(at_s)})})
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def query_range(
        self, expression: str, begin_s: float, end_s: float, step_s: float
    ) -> list[list[tuple[float, float]]]:
        """Return points over time, per series."""
        parameters = {"query": expression, "start": str(begin_s), "end": str(end_s), "step": str(step_s)}
        answer = self._get("query_range", parameters)
        return [[(at, float(value)) for at, value in one["values"]] for one in answer["result"]]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = self._get("alerts", {})["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def _get(self, name: str, parameters: dict[str, str]) -> Any:
        answer = self._process.get(f"/api/v1/{name}", **parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
