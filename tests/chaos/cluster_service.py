"""Three masters of a Redis Cluster, each with a third of the slots: a fault hits one at a time."""

from pathlib import Path
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.chaos.redis_service import FSYNC, RedisService, find_binary
from tests.chaos.server import Server
from tests.chaos.wire import Queue
from tests.ports import free_port

NODE_TIMEOUT_MS = 1500
_NUM_SLOTS = 16384


class ClusterService(RedisService):
    """Clients reach each node through its proxy, whose port the node announces; the nodes reach one another directly.

    There are no replicas: a failed node returns with its data. The queue has a lane on each node.
    """

    queue = Queue(lanes=3)

    def __init__(self, mode: str, directory: Path) -> None:
        super().__init__(mode, directory)
        binary = find_binary(mode)
        self.servers += [Server(binary, directory / f"server-{number}", FSYNC[mode]) for number in (2, 3)]
        self._buses = [free_port() for _ in self.servers]
        for server, bus in zip(self.servers, self._buses, strict=True):
            server.write_down(
                "cluster-enabled yes",
                "cluster-require-full-coverage no",
                f"cluster-node-timeout {NODE_TIMEOUT_MS}",
                f"cluster-port {bus}",
                "cluster-announce-ip 127.0.0.1",
                f"cluster-announce-port {server.port}",
                f"cluster-announce-bus-port {bus}",
            )
        self._hit = self.servers[0]
        self._observer: Any = None

    @property
    def master(self) -> Server:
        """The node that a fault hit last."""
        return self._hit

    def target(self, number: int) -> Server:
        """The node that a fault hits."""
        self._hit = self.servers[number % len(self.servers)]
        return self._hit

    @property
    def url(self) -> str:
        """The URL that names all nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    def producer(self) -> Any:
        """A client that follows the slots itself."""
        return _connect(self.servers[0].port)

    def observer(self) -> Any:
        """As `producer`, but bypassing the proxies."""
        if self._observer is None:
            direct = {server.port: server.direct_port for server in self.servers}
            remap = lambda address: (address[0], direct.get(address[1], address[1]))  # noqa: E731
            self._observer = _connect(self.servers[0].direct_port, address_remap=remap)
        return self._observer

    async def start(self) -> None:
        """Start the nodes, join them, assign the slots, and wait until all agree."""
        await super().start()
        share = -(-_NUM_SLOTS // len(self.servers))
        for number, server in enumerate(self.servers):
            slots = range(number * share, min((number + 1) * share, _NUM_SLOTS))
            async with server.client() as client:
                await client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                await client.execute_command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
                for other, bus in zip(self.servers[:number], self._buses, strict=False):
                    await client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.direct_port, bus)
        if why := await self.healed():
            raise RuntimeError(f"the cluster did not start: {why}")

    async def stop(self) -> None:
        """End everything."""
        if self._observer is not None:
            await self._observer.aclose()
        await super().stop()

    async def _what_is_wrong(self) -> str:
        """Every node must consider all nodes alive."""
        for server in self.servers:
            async with server.client() as client:
                info = await client.execute_command("CLUSTER", "INFO")
                slots = await client.execute_command("CLUSTER", "SLOTS")
            state = info.get("cluster_state") if isinstance(info, dict) else info.decode()
            if "ok" not in str(state).split("cluster_state:")[-1][:2]:
                return f"{server.direct_port} says {state}"
            if sum(last + 1 - first for first, last, *_ in slots) != _NUM_SLOTS:
                return f"{server.direct_port} knows not all slots"
        return ""


class _Client(RedisCluster):
    """redis-py's cluster client; a task that finds its connection closed by another task treats Redis as away."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)
        except AttributeError as error:
            raise ConnectionError("the connection was closed by another task") from error


def _connect(port: int, **options: Any) -> Any:
    return _Client(
        host="127.0.0.1",
        port=port,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=5,
        socket_connect_timeout=5,
        require_full_coverage=False,
        **options,
    )
