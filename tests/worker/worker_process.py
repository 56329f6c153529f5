"""A real worker process with the demo model, killed, frozen and drained by real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis

from schemas.keys import Keys
from tests.redis_server import _die_with_parent

MODEL = "orca-demo"
ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """`orcastream worker` against the server at `url`; `name` is known once it has said that it serves."""

    def __init__(self, url: str, log_path: Path, **settings: object) -> None:
        self.url = url
        self.log_path = log_path
        flags = {"redis_url": url, "lease_ms": 1000, "torch_threads": 1, "drain_grace_s": 20, **settings}
        arguments = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        with log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "worker", *arguments],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log_file,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """What the process has printed."""
        return self.log_path.read_text(errors="replace")

    def wait_serving(self, timeout_s: float = 90) -> str:
        """Wait until the worker has said that it is there; its name."""
        keys = Keys(MODEL)
        give_up = time.monotonic() + timeout_s
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            while time.monotonic() < give_up and self._process.poll() is None:
                for key in client.scan_iter(keys.worker("*")):
                    if client.hget(key, "pid") == str(self.pid):
                        return str(client.hget(key, "worker"))
                time.sleep(0.05)
        raise AssertionError(f"the worker did not come up:\n{self.log[-4000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for the end; the exit status."""
        return self._process.wait(timeout_s)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None
