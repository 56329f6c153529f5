"""One `orcastream` command as a real process, to be killed, frozen and stopped by real signals.

Importing torch and transformers takes longer than most tests. So one process, multiprocessing's fork server, imports
them once, and every service is forked from it: a separate process with its own pid, signals and exit status, which then
loads its model and connects as usual. Only the self-check of the demo model, two fifths of a worker's start, is left to
the tests of `orcastream up` and of the README, which start the command itself.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import ClassVar

from tests.parent import die_with_parent
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
_CACHE_BYTES = 64 << 20
"""For a worker's keys and values: what it takes by itself, 640 MB, is a second's work to fill."""
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.service_template"])


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has its own handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> number - 1 & 1)


class ServiceProcess:
    """`orcastream COMMAND` with `settings` as flags; its output goes to `log_path`. Never outlives the tests.

    `patch` is called in the process before the command runs.
    """

    context: ClassVar[ForkServerContext | SpawnContext] = FORK_SERVER

    def __init__(
        self, command: str, log_path: Path, *, patch: Callable[[], None] | None = None, **settings: object
    ) -> None:
        self.log_path = log_path
        log_path.touch()
        checked = command != "worker" or "model" in settings
        if command == "worker":
            settings = {"kv_cache_memory": _CACHE_BYTES, **settings}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        arguments = ([command, *flags], log_path, dict(os.environ), patch, checked)
        self._process = self.context.Process(target=_serve, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def log(self) -> str:
        """The output of the process so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process.is_alive()

    def wait_catching(self, number: signal.Signals) -> None:
        """Wait until the process has a handler for a signal: from here on the signal does not kill it outright."""
        while not catches(self.pid, number):
            assert self.running, self.log
            time.sleep(0.001)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):  # ended, but the fork server has not reported it yet
            if self.running:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.join()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status. Raises TimeoutExpired if it does not end."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"service {self.pid}", timeout_s)
        return self._process.exitcode


def set_up_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Set this process's environment to that of a service: `environment`, and one thread for each torch operator."""
    wanted = {**environment, "OMP_NUM_THREADS": "1"}
    os.environ.clear()
    os.environ.update(wanted)


def skip_self_check() -> None:
    """Make every engine that this process loads start without its self-check."""
    from orcastream.engine import OrcaEngine

    load = OrcaEngine.load
    OrcaEngine.load = lambda config: load(replace(config, self_check=False))


def _serve(
    arguments: list[str],
    log_path: Path,
    environment: dict[str, str],
    patch: Callable[[], None] | None,
    checked: bool,
) -> None:
    die_with_parent()
    set_up_environment(environment)
    os.chdir(ROOT)
    with log_path.open("ab") as log_file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log_file.fileno(), stream.fileno())
    from orcastream.cli.main import main

    if not checked:
        skip_self_check()
    if patch is not None:
        patch()
    try:
        sys.exit(main(arguments))
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
