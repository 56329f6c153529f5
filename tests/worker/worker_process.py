"""A real worker process with the demo model, killed, frozen and drained by real signals."""

import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from orcastream.schemas.keys import Keys
from tests.chaos.patches import pace
from tests.patience import PATIENCE_S
from tests.redis_cluster import plain_client
from tests.service_process import ServiceProcess

MODEL = "orca-demo"
PACED: Final = partial(pace, 0.005)
"""`patch` of workers that something happens to in mid-answer: whoever looks on, and gets no core for a moment, comes in
time all the same. An answer of 400 tokens takes two seconds and what is computed."""


class WorkerProcess(ServiceProcess):
    """`orcastream worker` against the server at `url`."""

    def __init__(self, url: str, log_path: Path, **settings: Any) -> None:
        self.url = url
        defaults: dict[str, Any] = {"redis_url": url, "lease_ms": 1000, "torch_threads": 1, "drain_grace_s": 20}
        super().__init__("worker", log_path, **{**defaults, **settings})

    def wait_serving(self, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the worker has announced itself, and return its name."""
        keys = Keys(MODEL)
        give_up = time.monotonic() + timeout_s
        with plain_client(self.url, decode_responses=True) as client:
            while time.monotonic() < give_up and self.running:
                for key in client.scan_iter(keys.worker("*")):
                    if client.hget(key, "pid") == str(self.pid):
                        return str(client.hget(key, "worker"))
                time.sleep(0.05)
        raise AssertionError(f"the worker did not start:\n{self.log[-4000:]}")
