"""Redis under attack: one server; `sentinel_service.py` has the kind with a replica and sentinels."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

from tests.chaos.cancelling import cancel
from tests.chaos.losses import Loss
from tests.chaos.record import AWAY, connect
from tests.chaos.server import Server
from tests.chaos.wire import Queue
from tests.redis_server import embedded_binary

FSYNC = {
    "none": None,
    "everysec": "everysec",
    "always": "always",
    "valkey": "always",
    "sentinel": "everysec",
    "cluster": "always",
}
"""How the append-only file is synced, by mode; None: there is none."""
HEAL_S = 60.0
_LOOK_S = 0.1
_LATE_S = 0.5
"""So much later than Redis we may have seen an entry."""
_UNWRITTEN_S = 2.5
"""While the disk is slow to sync, `everysec` keeps what it has acknowledged in memory for two seconds, without even a
write(2): a killed server loses that."""


class Unsupported(Exception):
    """The mode cannot be run; the message says why."""


def find_binary(mode: str) -> str:
    """Return the server binary for a mode: Valkey for `valkey`; the one on PATH for `cluster`, which needs Redis 7;
    otherwise the bundled one, or else the one on PATH.
    """
    if mode not in FSYNC:
        raise Unsupported(f"MODE={mode}: allowed: {', '.join(FSYNC)}")
    if mode == "valkey":
        binary = shutil.which("valkey-server")
    elif mode == "cluster":
        binary = shutil.which("redis-server")
    else:
        binary = embedded_binary() or shutil.which("redis-server")
    if binary is None:
        raise Unsupported(f"MODE={mode}: no {'valkey' if mode == 'valkey' else 'redis'}-server found on this machine")
    return binary


class RedisService:
    """One server. Kinds with several servers override the members about `master`, the one that accepts writes now."""

    queue = Queue()

    def __init__(self, mode: str, directory: Path) -> None:
        self._fsync = FSYNC[mode]
        self.servers = [Server(find_binary(mode), directory / "server-1", FSYNC[mode])]
        self.losses: list[Loss] = []
        """When acknowledged writes may have been lost; with `none`, all that there were, by each end of the server."""
        self._watching: list[asyncio.Task[None]] = []
        self._observers: dict[int, Any] = {}

    @property
    def master(self) -> Server:
        """The server that accepts writes now."""
        return self.servers[0]

    @property
    def url(self) -> str:
        """The URL that services connect to."""
        return f"redis://127.0.0.1:{self.master.port}/0"

    def producer(self) -> Any:
        """A client that every fault affects; it repeats nothing."""
        return connect(self.master.port)

    def observer(self) -> Any:
        """A client that bypasses the proxies, to the server that accepts writes now; closed at the end."""
        port = self.master.direct_port
        if port not in self._observers:
            self._observers[port] = connect(port)
        return self._observers[port]

    def target(self, number: int) -> Server:
        """The server that a fault hits."""
        return self.master

    async def start(self) -> None:
        """Start everything, and wait until it serves."""
        for server in self.servers:
            await server.start()
            await server.proxy.listen()
        self._watching = [asyncio.create_task(server.watch_file()) for server in self.servers]

    async def healed(self) -> str:
        """Wait until the next fault may occur; return what is still wrong, if anything."""
        give_up, why = time.monotonic() + HEAL_S, "?"
        while time.monotonic() < give_up:
            try:
                why = await self._what_is_wrong()
            except AWAY as error:
                why = repr(error)
            if not why:
                return ""
            await asyncio.sleep(_LOOK_S)
        return why

    async def refuse(self, *, everywhere: bool) -> None:
        """Cut the connections to the master, or to all servers, and refuse new ones until `listen`."""
        for server in self.servers if everywhere else [self.master]:
            await server.proxy.refuse()

    async def listen(self) -> None:
        """Accept connections again."""
        for server in self.servers:
            await server.proxy.listen()

    async def kill(self, server: Server) -> None:
        """SIGKILL."""
        begin = time.monotonic() - _UNWRITTEN_S
        await server.kill()
        self._may_have_lost(begin)

    async def lose_machine(self, server: Server, seconds: float) -> None:
        """Simulate the failure of the server's machine, which loses what it had not synced for `seconds`."""
        begin = time.monotonic() - _UNWRITTEN_S - seconds
        await server.lose_machine(seconds)
        self._may_have_lost(begin)

    async def _what_is_wrong(self) -> str:
        """Nothing, because a single server needs no agreement."""
        return ""

    def _may_have_lost(self, begin: float) -> None:
        if self._fsync != "always":
            self.losses.append(Loss(begin if self._fsync else float("-inf"), time.monotonic() + _LATE_S))

    async def stop(self) -> None:
        """End everything."""
        await cancel(self._watching)
        for observer in self._observers.values():
            await observer.aclose()
        for server in self.servers:
            await server.stop()
