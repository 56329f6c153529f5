"""The Redis server under attack, behind a proxy."""

import asyncio
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.chaos.proxy import Proxy
from tests.chaos.record import AWAY, connect
from tests.parent import die_with_parent
from tests.ports import free_port
from tests.redis_server import embedded_binary

MODES = {"none": "no", "everysec": "everysec", "always": "always"}
"""How the append-only file is synced, by mode; `no`: there is none."""
_NOT_YET = {
    "sentinel": "this suite starts no sentinels",
    "cluster": "workers and gateways of this version follow no redirection",
}
_START_S = 30.0
_FILE_ROOM_BYTES = 2000
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class Unsupported(Exception):
    """The mode cannot be run; the message says why."""


def find_binary(mode: str) -> str:
    """The server of a mode: Valkey for `valkey`, else the one that comes along, else the one on PATH."""
    if mode in _NOT_YET:
        raise Unsupported(f"MODE={mode} is not supported yet: {_NOT_YET[mode]}")
    if mode not in (*MODES, "valkey"):
        raise Unsupported(f"MODE={mode}: allowed: {', '.join((*MODES, 'valkey', *_NOT_YET))}")
    binary = shutil.which("valkey-server") if mode == "valkey" else embedded_binary() or shutil.which("redis-server")
    if binary is None:
        raise Unsupported(f"MODE={mode}: no {'valkey' if mode == 'valkey' else 'redis'}-server found on this machine")
    return binary


class RedisService:
    """One server. `port` is the proxy's, for those who are to suffer; `direct_port` the server's own."""

    def __init__(self, mode: str, directory: Path) -> None:
        self._binary = find_binary(mode)
        self._fsync = MODES.get(mode, "always")
        self._directory = directory
        directory.mkdir(parents=True)
        self.direct_port = free_port()
        self.port = free_port()
        self.proxy = Proxy(self.port, self.direct_port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where services connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the server and wait until it has loaded its data. RuntimeError where it does not."""
        self._launch()
        give_up = time.monotonic() + _START_S
        while time.monotonic() < give_up and self.running:
            client = connect(self.direct_port)
            try:
                await client.ping()
                return
            except AWAY:
                await asyncio.sleep(0.02)
            finally:
                await client.aclose()
        raise RuntimeError(f"{self._binary} did not start: see {self._directory}")

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def configure(self, name: str, value: object) -> None:
        """CONFIG SET."""
        client = connect(self.direct_port)
        try:
            await client.config_set(name, value)
        finally:
            await client.aclose()

    async def fill_memory(self) -> None:
        """Let it refuse whatever needs memory, until `maxmemory` is 0 again."""
        await self.configure("maxmemory", 1)

    async def fill_disk(self) -> None:
        """Let its append-only file grow by a few more writes only, until `free_disk`."""
        files = (path.stat().st_size for path in self._directory.rglob("*.aof"))
        limit = max(files, default=0) + _FILE_ROOM_BYTES
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def free_disk(self) -> None:
        """There is room again; a server that ended for want of it is started anew."""
        if self.running:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, _UNLIMITED)
            await asyncio.sleep(0.2)
        if not self.running:
            await self.start()

    async def stop(self) -> None:
        """End it and its proxy."""
        await self.proxy.close()
        if self.running:
            await self.kill()

    def _launch(self) -> None:
        persistence = ["--appendonly", "no"] if self._fsync == "no" else ["--appendonly", "yes"]
        persistence += [] if self._fsync == "no" else ["--appendfsync", self._fsync]
        command = [self._binary, "--port", str(self.direct_port), "--bind", "127.0.0.1", "--save", "", *persistence]
        command += ["--dir", str(self._directory), "--logfile", str(self._directory / "redis.log")]
        # Python ignores SIGXFSZ, and so shall the server: a file at its limit is then a disk that is full.
        self._process = subprocess.Popen(command, preexec_fn=die_with_parent, restore_signals=False)
