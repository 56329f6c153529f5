"""Three masters of a Redis Cluster, each with a third of the slots: a fault hits one at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio.cluster import ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.chaos.redis_service import FSYNC, RedisService, find_binary
from tests.chaos.server import Server
from tests.chaos.wire import Queue
from tests.ports import free_port

NODE_TIMEOUT_MS = 1500
_NUM_SLOTS = 16384
_LOGS_MOVED_OF = 8


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

    async def move_slots(self, number: int, pause_s: float) -> None:
        """Move the slots of one of the queue's lanes and of some reply logs to one node, in two halves with a pause in
        between. (Moving slots both ways at once may leave some without an owner in Redis 7.0.)
        """
        lanes = [f"{lane:02x}" for lane in range(number % _LOGS_MOVED_OF, 256, _LOGS_MOVED_OF)]
        keys = [self.queue.all_of("work")[number // 2 % self.queue.lanes], *(f"{{{lane}}}" for lane in lanes)]
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(server.client()) for server in self.servers]
            names = [(await node.execute_command("CLUSTER", "MYID")).decode() for node in nodes]
            ports = [server.direct_port for server in self.servers]
            owned = [await _owned(node, name) for node, name in zip(nodes, names, strict=True)]
            target = number % len(nodes)
            slots = {await nodes[0].execute_command("CLUSTER", "KEYSLOT", key) for key in keys} - owned[target]
            moves = [(slot, next(at for at, slots in enumerate(owned) if slot in slots)) for slot in slots]
            for slot, source in moves:
                await nodes[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
                await nodes[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
            for slot, source in moves:
                half = -(-await nodes[source].execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) // 2)
                await _migrate(nodes[source], slot, ports[target], half)
            await asyncio.sleep(pause_s)
            for slot, source in moves:
                while await _migrate(nodes[source], slot, ports[target], 100):
                    pass
                for node in (target, source, *range(len(nodes))):
                    await nodes[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target])

    async def stop(self) -> None:
        """End everything."""
        if self._observer is not None:
            await self._observer.aclose()
        await super().stop()

    async def _what_is_wrong(self) -> str:
        """Every node must consider all nodes alive, and agree with the others who owns which slots."""
        owners = set[str]()
        for server in self.servers:
            async with server.client() as client:
                info = await client.execute_command("CLUSTER", "INFO")
                slots = await client.execute_command("CLUSTER", "SLOTS")
            state = info.get("cluster_state") if isinstance(info, dict) else info.decode()
            if "ok" not in str(state).split("cluster_state:")[-1][:2]:
                return f"{server.direct_port} says {state}"
            if sum(last + 1 - first for first, last, *_ in slots) != _NUM_SLOTS:
                return f"{server.direct_port} knows not all slots"
            owners.add(str(sorted((first, owner[2]) for first, _, owner, *_ in slots)))
        return "" if len(owners) == 1 else "the nodes disagree about the owners of slots"


async def _owned(node: Any, name: str) -> set[int]:
    """Return the slots of a node, according to itself: the others may not have heard."""
    ranges = await node.execute_command("CLUSTER", "SLOTS")
    return {slot for first, last, owner, *_ in ranges if owner[2].decode() == name for slot in range(first, last + 1)}


async def _migrate(source: Any, slot: int, port: int, count: int) -> bool:
    """Move up to `count` keys of a slot; return whether there were any."""
    keys = await source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
    if keys:
        await source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
    return bool(keys)


@contextmanager
def _closed_is_away() -> Iterator[None]:
    """Treat Redis as away where redis-py finds a connection closed by another task."""
    try:
        yield
    except AttributeError as error:
        raise ConnectionError("the connection was closed by another task") from error


class _Client(RedisCluster):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with _closed_is_away():
            return await super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> "_Pipeline":
        return _Pipeline(self)  # type: ignore[abstract]  # redis-py declares commands abstract that it never defines


class _Pipeline(ClusterPipeline):
    async def execute(self, *args: Any, **options: Any) -> Any:
        with _closed_is_away():
            return await super().execute(*args, **options)


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
