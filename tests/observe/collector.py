"""An OpenTelemetry collector with a configuration file, on its own ports."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.observe.server_process import ServerProcess
from tests.ports import free_port

SHIPPED: Final = Path(__file__).parents[2] / "telemetry" / "collector" / "config.yaml"
"""As Compose has it; what it sends goes to GRAFANA_OTLP_ENDPOINT."""
_HOST: Final = "127.0.0.1"


class Collector:
    """A collector; `url` accepts OTLP over HTTP. Its configuration has a receiver `otlp` and `health_check`."""

    def __init__(
        self, program: str, config: Path, directory: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        port, grpc_port, health_port = free_port(), free_port(), free_port()
        self.url = f"http://{_HOST}:{port}"
        protocols = {"http": {"endpoint": f"{_HOST}:{port}"}, "grpc": {"endpoint": f"{_HOST}:{grpc_port}"}}
        own = {
            "receivers": {"otlp": {"protocols": protocols}},
            "extensions": {"health_check": {"endpoint": f"{_HOST}:{health_port}"}},
            "service": {"telemetry": {"metrics": {"level": "none"}}},
        }
        directory.mkdir(parents=True)
        path = directory / "own.yaml"
        path.write_text(json.dumps(own))
        command = [program, f"--config={config}", f"--config={path}"]
        variables = {**os.environ, **(environment or {})}
        self._process = ServerProcess(command, health_port, directory / "log", environment=variables)

    def wait_ready(self) -> None:
        """Wait until the collector is healthy."""
        self._process.wait_ready("/")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
