"""A Prometheus server of the tests' own: it scrapes, or is pushed to, and evaluates the shipped rules."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.parent import tied_to_parent
from tests.ports import free_port
from tests.telemetry.prometheus_binaries import Prometheus
from tests.telemetry.rules import RULES

Labels = dict[str, str]
Point = tuple[float, float]
"""Unix time in seconds, and value."""


@dataclass(frozen=True)
class Target:
    """Something to scrape: the job that it counts to, and HOST:PORT."""

    job: str
    address: str


class PrometheusServer:
    """Evaluates every `every_s`, and scrapes its targets as often; if it is `pushed` to, it has none."""

    def __init__(self, prometheus: Prometheus, directory: Path, every_s: float, *, pushed: bool) -> None:
        self.version = prometheus.version
        self.pushed = pushed
        self._directory = directory
        self._targets = directory / "targets.json"
        self._port = free_port()
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30)
        directory.mkdir(parents=True)
        self.scrape([])
        self._write_config(every_s)
        flags = ["--web.enable-remote-write-receiver"] if pushed else []
        command = [
            prometheus.server,
            f"--config.file={directory / 'prometheus.json'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            *flags,
        ]
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(tied_to_parent(command), stdout=log, stderr=log)

    @property
    def write_url(self) -> str:
        """Where samples are pushed to."""
        return f"http://127.0.0.1:{self._port}/api/v1/write"

    @property
    def way(self) -> str:
        """How metrics come to it."""
        return "OTLP" if self.pushed else "scraping"

    def _write_config(self, every_s: float) -> None:
        every = f"{every_s * 1000:.0f}ms"
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(RULES)],
        }
        if not self.pushed:
            files = [{"files": [str(self._targets)], "refresh_interval": "1s"}]
            config["scrape_configs"] = [{"job_name": "orcastream", "file_sd_configs": files}]
        (self._directory / "prometheus.json").write_text(json.dumps(config))

    def scrape(self, targets: Sequence[Target]) -> None:
        """Scrape these from now on."""
        groups = [{"targets": [one.address], "labels": {"job": one.job}} for one in targets]
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps(groups))
        written.replace(self._targets)

    def wait_ready(self) -> None:
        """Wait until it answers."""
        give_up_s = time.monotonic() + 60
        while time.monotonic() < give_up_s and self._process.poll() is None:
            try:
                if self._http.get("/-/ready").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError((self._directory / "log").read_text(errors="replace")[-4000:])

    def query(self, expression: str, at_s: float | None = None) -> list[tuple[Labels, float]]:
        """The instant vector of `expression`; AssertionError with Prometheus's word where it is none."""
        answer = self._get("query", {"query": expression, **({} if at_s is None else {"time": str(at_s)})})
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def query_range(
        self, expression: str, begin_s: float, end_s: float, step_s: float
    ) -> list[list[tuple[float, float]]]:
        """Points over time, per series."""
        parameters = {"query": expression, "start": str(begin_s), "end": str(end_s), "step": str(step_s)}
        answer = self._get("query_range", parameters)
        return [[(at, float(value)) for at, value in one["values"]] for one in answer["result"]]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._get("alerts", {})["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def _get(self, name: str, parameters: dict[str, str]) -> Any:
        answer = self._http.get(f"/api/v1/{name}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def kill(self) -> None:
        """SIGKILL."""
        self._http.close()
        self._process.kill()
        self._process.wait()
