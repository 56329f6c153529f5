"""A real gateway process in front of the demo model."""

import time
from pathlib import Path
from typing import Any

import httpx

from orcastream import demo
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.service_process import ServiceProcess


class GatewayProcess(ServiceProcess):
    """`orcastream gateway` against the server at `url`, on its own port."""

    def __init__(self, url: str, log_path: Path, *, port: int | None = None, **settings: Any) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        defaults: dict[str, Any] = {
            "redis_url": url,
            "port": self.port,
            "lease_ms": 1000,
            "loss_check_s": 0.5,
            "model": demo.MODEL_DIR,
        }
        super().__init__("gateway", log_path, **{**defaults, "served_model_name": "orca-demo", **settings})

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the gateway reports that Redis answers and a worker is alive."""
        give_up = time.monotonic() + timeout_s
        while self.wait_answering(timeout_s).status_code != 200:
            assert time.monotonic() < give_up, f"the gateway did not become ready:\n{self.log[-4000:]}"
            time.sleep(0.05)

    def wait_answering(self, timeout_s: float = PATIENCE_S) -> httpx.Response:
        """Wait until the gateway reports whether it is ready; return the report."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up and self.running:
            try:
                return httpx.get(f"{self.url}/health/ready", timeout=5)
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError(f"the gateway does not answer:\n{self.log[-4000:]}")
