"""A master, a replica and three sentinels: a failed master is replaced."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from tests.chaos.losses import Loss
from tests.chaos.record import AWAY, connect
from tests.chaos.redis_service import FSYNC, HEAL_S, RedisService, find_binary
from tests.chaos.server import Server
from tests.parent import tied_to_parent
from tests.ports import free_port

SERVICE = "orca"
DOWN_AFTER_MS = 2000
_NUM_SENTINELS = 3
_LOOK_S = 0.1
_UNSEEN_LAG_S = 1.0
"""How far the replica may be behind although nobody holds it up."""
_FOLLOWING_S = 3.0
"""How long after the sentinels name a new master somebody may still write to the old one."""


class SentinelService(RedisService):
    """All of them communicate through the servers' proxies; faults do not affect the sentinels themselves."""

    def __init__(self, mode: str, directory: Path) -> None:
        super().__init__(mode, directory)
        self._binary = find_binary(mode)
        self._directory = directory
        self.servers.append(Server(self._binary, directory / "server-2", FSYNC[mode], replica_of=self.servers[0]))
        self._ports = [free_port() for _ in range(_NUM_SENTINELS)]
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._master = self.servers[0]
        self._disturbed_at: float | None = None
        self._changed = asyncio.Event()

    @property
    def master(self) -> Server:
        """The server that the sentinels name."""
        return self._master

    @property
    def url(self) -> str:
        """The URL of the sentinels."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self._ports)}/{SERVICE}"

    def producer(self) -> Any:
        """A client that asks the sentinels at each connection."""
        options: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        sentinels = Sentinel([("127.0.0.1", port) for port in self._ports], sentinel_kwargs={"socket_timeout": 1})
        return sentinels.master_for(SERVICE, **options)

    async def start(self) -> None:
        """Start everything, and wait until a failover could succeed."""
        await super().start()
        for port in self._ports:
            self._start_sentinel(port)
        self._watching.append(asyncio.create_task(self._watch_master()))
        if why := await self.healed():
            raise RuntimeError(f"the sentinels did not start: {why}")

    async def hold_up_replication(self) -> None:
        """Stop the replication, so that later writes are lost with the master."""
        self._disturbed_at = self._disturbed_at or time.monotonic()
        [replica] = [server for server in self.servers if server is not self.master]
        await replica.configure("masterauth", "no such password")
        client = self.master.client()
        try:
            await client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        finally:
            await client.aclose()

    async def promote(self) -> None:
        """Have the sentinels promote the replica while the master is alive."""
        async with connect(self._ports[0]) as sentinel:
            await sentinel.sentinel_failover(SERVICE)

    async def changed(self, do: Callable[[], Awaitable[None]]) -> str:
        """Perform an action and wait until another server is the master; return what is wrong if none is."""
        self._changed.clear()
        try:
            await do()
            async with asyncio.timeout(HEAL_S):
                await self._changed.wait()
        except AWAY as error:
            return repr(error)
        except TimeoutError:
            return "nobody was promoted"
        return ""

    async def healed(self) -> str:
        """As in the base class; then resume the replication."""
        why = await super().healed()
        if not why:
            self._disturbed_at = None
        return why

    async def stop(self) -> None:
        """End everything."""
        for process in self._sentinels:
            process.kill()
            process.wait()
        await super().stop()

    async def _what_is_wrong(self) -> str:
        """The replica must have the master's data, and all sentinels must know both."""
        for server in self.servers:
            await server.configure("masterauth", "")
        replicas = [server for server in self.servers if server is not self.master]
        async with self.master.client() as master, replicas[0].client() as replica:
            offset = (await master.info("replication")).get("master_repl_offset", 0)
            state = await replica.info("replication")
        if state.get("master_link_status") != "up" or state["slave_repl_offset"] < offset:
            return "the replica is behind"
        for port in self._ports:
            async with connect(port) as sentinel:
                known = await sentinel.sentinel_master(SERVICE)
            if (known["num-slaves"], known["num-other-sentinels"], known["flags"]) != (1, 2, "master"):
                return f"the sentinel {port} knows {known}"
            if int(known["port"]) != self.master.port:
                return f"the sentinel {port} names another master"
        return ""

    async def _watch_master(self) -> None:
        """Ask one sentinel for the master, forever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                async with connect(self._ports[0]) as sentinel:
                    _, port = await sentinel.sentinel_get_master_addr_by_name(SERVICE)
            except AWAY:
                continue
            named = next(server for server in self.servers if server.port == int(port))
            if named is not self._master:
                now = time.monotonic()
                former, self._master = self._master, named
                begin = now - DOWN_AFTER_MS / 1000 - _FOLLOWING_S if self._disturbed_at is None else self._disturbed_at
                self.losses.append(Loss(begin - _UNSEEN_LAG_S, now + _FOLLOWING_S))
                self._watching.append(asyncio.create_task(self._watch_former(former, len(self.losses) - 1)))
                self._changed.set()

    async def _watch_former(self, server: Server, number: int) -> None:
        """A failed master returns as a master and accepts writes until the sentinels make it a replica: the loss lasts
        until then.
        """
        while server is not self._master:
            try:
                async with server.client() as client:
                    role, *_ = await client.execute_command("ROLE")
            except AWAY:
                role = None
            self.losses[number] = replace(self.losses[number], end=time.monotonic() + _FOLLOWING_S)
            if role in ("slave", b"slave"):
                return
            await asyncio.sleep(_LOOK_S)

    def _start_sentinel(self, port: int) -> None:
        directory = self._directory / f"sentinel-{port}"
        directory.mkdir()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\nlogfile {directory}/log\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
        )
        command = tied_to_parent([self._binary, str(config), "--sentinel"])
        self._sentinels.append(subprocess.Popen(command))
