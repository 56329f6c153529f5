"""One Redis server under attack, behind its own proxy."""

import asyncio
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.proxy import Proxy
from tests.chaos.record import AWAY, connect
from tests.parent import tied_to_parent
from tests.ports import free_port

_START_S = 30.0
_PATIENCE_S = 60.0
"""For commands that a fault consists of: a busy machine may take long."""
_FILE_ROOM_BYTES = 2000
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_LOOK_S = 0.05
_TOO_MANY = 5000


class Server:
    """`port` is the proxy's, for clients that faults affect; `direct_port` is the server's own. `fsync` None: the
    server persists nothing. Its configuration is in a file, because changes of its role are written there.
    """

    def __init__(self, binary: str, directory: Path, fsync: str | None, *, replica_of: "Server | None" = None) -> None:
        self._binary = binary
        self._directory = directory
        directory.mkdir(parents=True)
        self.direct_port = free_port()
        self.port = free_port()
        self.proxy = Proxy(self.direct_port, self.port)
        self._process: subprocess.Popen[bytes] | None = None
        self._sizes: deque[tuple[float, int]] = deque(maxlen=200)
        """Of the append-only file, with times (monotonic)."""
        lines = [f"port {self.direct_port}", "bind 127.0.0.1", f"dir {directory}", f"logfile {directory}/redis.log"]
        lines += ['save ""', "auto-aof-rewrite-percentage 0"]
        lines += ["appendonly no"] if fsync is None else ["appendonly yes", f"appendfsync {fsync}"]
        # So that replication and sentinels use the proxy too.
        lines += ["replica-announce-ip 127.0.0.1", f"replica-announce-port {self.port}"]
        lines += [] if replica_of is None else [f"replicaof 127.0.0.1 {replica_of.port}"]
        self._config = directory / "redis.conf"
        self._config.write_text("\n".join(lines) + "\n")

    def write_down(self, *lines: str) -> None:
        """Add to its configuration, before it starts."""
        with self._config.open("a") as config:
            config.writelines(f"{line}\n" for line in lines)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> Any:
        """Return a client that bypasses the proxy."""
        return connect(self.direct_port)

    async def start(self) -> None:
        """Start the server and wait until it has loaded its data. Raises RuntimeError if it does not."""
        self._launch()
        give_up = time.monotonic() + _START_S
        while time.monotonic() < give_up and self.running:
            client = self.client()
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
        """Send CONFIG SET."""
        client = connect(self.direct_port, _PATIENCE_S)
        try:
            await client.config_set(name, value)
        finally:
            await client.aclose()

    async def fill_memory(self) -> None:
        """Make the server refuse every write that needs memory."""
        await self.configure("maxmemory", 1)

    async def free_memory(self) -> None:
        """Remove the memory limit."""
        await self.configure("maxmemory", 0)

    @asynccontextmanager
    async def without_replicas(self) -> AsyncIterator[None]:
        """Make the server refuse every write because it has too few replicas."""
        await self.configure("min-replicas-to-write", _TOO_MANY)
        try:
            yield
        finally:
            await self.configure("min-replicas-to-write", 0)

    @asynccontextmanager
    async def without_room(self) -> AsyncIterator[None]:
        """Make the server refuse every new connection, and cut those through the proxy."""
        client = connect(self.direct_port, _PATIENCE_S)
        try:
            await client.config_set("maxclients", 1)
            await self.proxy.refuse()
            await self.proxy.listen()
            yield
            await client.config_set("maxclients", _TOO_MANY)
        finally:
            await client.aclose()

    async def fill_disk(self) -> None:
        """Limit its append-only file to a few more writes, until `free_disk`."""
        limit = self._file_size() + _FILE_ROOM_BYTES
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def free_disk(self) -> None:
        """Remove the limit; restart a server that ended for lack of disk space."""
        if self.running:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, _UNLIMITED)
            await asyncio.sleep(0.2)
        if not self.running:
            await self.start()

    async def watch_file(self) -> None:
        """Track the size of the append-only file, forever."""
        while True:
            self._sizes.append((time.monotonic(), self._file_size()))
            await asyncio.sleep(_LOOK_S)

    async def lose_machine(self, seconds: float) -> None:
        """Send SIGKILL, and drop the last `seconds` of the append-only file, as if not on disk."""
        await self.kill()
        until = time.monotonic() - seconds
        kept = [size for at, size in self._sizes if at <= until]
        if kept:
            with self._file().open("r+b") as file:
                file.truncate(min(kept[-1], file.seek(0, 2)))
        self._sizes.clear()

    async def stop(self) -> None:
        """End the server and its proxy."""
        await self.proxy.refuse()
        if self.running:
            await self.kill()

    def _launch(self) -> None:
        command = tied_to_parent([self._binary, str(self._config), "--maxmemory", "0"])
        # Python ignores SIGXFSZ, and the server must too: a file at its limit then acts as a full disk.
        self._process = subprocess.Popen(command, restore_signals=False)

    def _file(self) -> Path:
        parts = sorted(self._directory.glob("appendonlydir/*.incr.aof"))
        return parts[-1] if parts else self._directory / "appendonly.aof"

    def _file_size(self) -> int:
        file = self._file()
        return file.stat().st_size if file.exists() else 0
