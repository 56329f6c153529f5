"""One `orcastream` command as a real process, to be killed, frozen and stopped by real signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.redis_server import _die_with_parent

ROOT = Path(__file__).parents[1]


class ServiceProcess:
    """`orcastream COMMAND` with `settings` as flags; what it prints goes to `log_path`. Never outlives the tests."""

    def __init__(self, command: str, log_path: Path, **settings: object) -> None:
        self.log_path = log_path
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        with log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", command, *flags],
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

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

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
