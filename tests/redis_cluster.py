"""Three masters of a Redis Cluster, real processes, each serving a third of the slots; slots can be moved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.ports import free_port
from tests.redis_server import RedisServer, runs_clusters
from tests.redis_waiting import text, wait_until

NUM_SLOTS = 16384
NODE_TIMEOUT_MS = 3000
"""A node that gets no core for a moment is not taken for dead."""


class RedisCluster:
    """`nodes` serve the slots in order, each with a replica if `replicated`. If a node is dead, the others keep serving
    their slots, unless `full_coverage` is set, which is Redis's default.
    """

    def __init__(
        self,
        binary: str,
        directory: Path,
        *,
        num_nodes: int = 3,
        replicated: bool = False,
        aof: str | None = "always",
        full_coverage: bool = False,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        options: Callable[[RedisServer], Sequence[str]] = lambda _: (),
    ) -> None:
        if not runs_clusters(binary):
            pytest.skip("no redis-server of version 7 found on this machine")
        self.nodes = [RedisServer(binary, directory / f"node{number}", aof=aof) for number in range(num_nodes)]
        copies = range(num_nodes if replicated else 0)
        self.replicas = [RedisServer(binary, directory / f"replica{number}", aof=aof) for number in copies]
        for node in (*self.nodes, *self.replicas):
            node.options += ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms)]
            node.options += ["--cluster-require-full-coverage", "yes" if full_coverage else "no"]
            # The bus has its own port, which by default is outside the range reserved for tests.
            node.options += ["--cluster-port", str(free_port()), *options(node)]
            node.options += ["--repl-diskless-sync-delay", "0"]

    @property
    def url(self) -> str:
        """The URL of one node, which knows the others."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        """Start the nodes, join them, assign the slots, and wait until all of them confirm it."""
        for node in (*self.nodes, *self.replicas):
            node.start()
        share = -(-NUM_SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            slots = range(number * share, min((number + 1) * share, NUM_SLOTS))
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
                for other in (*self.nodes[:number], *self.replicas):
                    bus = other.options[other.options.index("--cluster-port") + 1]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        self.wait_whole()
        for node, replica in zip(self.nodes, self.replicas, strict=False):
            _replicate(node, replica)

    def wait_whole(self) -> None:
        """Wait until every node knows the owner of each slot, and considers all nodes alive."""
        for node in self.nodes:
            wait_until(lambda node=node: self._is_whole(node))  # type: ignore[misc]

    def stop(self) -> None:
        """End everything."""
        for node in (*self.nodes, *self.replicas):
            node.kill()

    def promote(self, key: str) -> None:
        """Kill the master of `key` permanently, and wait until its replica serves in its place."""
        master = self.node_of(key)
        number = self.nodes.index(master)
        master.kill()
        self.nodes[number] = self.replicas[number]
        self.wait_whole()

    def node_of(self, key: str) -> RedisServer:
        """Return the node that serves a key, according to the first live node."""
        slot = key_slot(key.encode())
        for node in self.nodes:
            try:
                with node.client() as client:
                    served = _served(client)
            except redis.RedisError:
                continue
            for first, last, port in served:
                if first <= slot <= last:
                    return next(one for one in self.nodes if one.port == port)
        raise LookupError(f"no node serves {key}")

    def client(self) -> "redis.RedisCluster":
        """Return a plain client of the whole cluster, for direct use by a test."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port)

    def flush(self) -> None:
        """Delete everything, including scripts."""
        for node in self.nodes:
            with node.client() as client:
                client.flushall()
                client.script_flush()

    def move(self, key: str, target: RedisServer) -> None:
        """Move the slot of `key` with all its keys."""
        with self.moving(key, target):
            pass

    @contextmanager
    def moving(self, key: str, target: RedisServer, *, num_keys: int = 1000) -> Iterator[None]:
        """Inside the block, the slot of `key` is migrating to `target`, which already has `num_keys` of its keys."""
        slot, source = key_slot(key.encode()), self.node_of(key)
        with source.client() as old, target.client() as new:
            names = [client.execute_command("CLUSTER", "MYID") for client in (old, new)]
            source_id, target_id = [text(name) for name in names]
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
            _migrate(old, slot, target.port, num_keys)
            yield
            while _migrate(old, slot, target.port, 1000):
                pass
            for client in (new, old):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def _is_whole(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER", "INFO")
            served = _served(client)
        num_slots = sum(last + 1 - first for first, last, _ in served)
        state = info["cluster_state"] if isinstance(info, dict) else "ok" if b"cluster_state:ok" in info else "fail"
        return state == "ok" and num_slots == NUM_SLOTS and len({port for *_, port in served}) == len(self.nodes)


def _served(client: "redis.Redis") -> list[tuple[int, int, int]]:
    """Return the first and last slot of each range, and the port of its node."""
    found: Any = client.execute_command("CLUSTER", "SLOTS")
    return [(first, last, master[1]) for first, last, master, *_ in found]


def _replicate(node: RedisServer, replica: RedisServer) -> None:
    """Make one node a replica of the other, and wait until it has all of its data."""
    with node.client() as master, replica.client() as client:
        name = text(master.execute_command("CLUSTER", "MYID"))

        def told() -> bool:  # refused until it has heard of the master
            client.execute_command("CLUSTER", "REPLICATE", name)
            return True

        def follows() -> bool:
            info: Any = client.info("replication")
            return info["role"] == "slave" and info["master_link_status"] == "up"

        wait_until(told)
        wait_until(follows)


def plain_client(url: str, **options: Any) -> Any:
    """Return redis-py's client for a URL: of a server or a cluster."""
    scheme, _, rest = url.partition("+cluster")
    return redis.RedisCluster.from_url(scheme + rest, **options) if rest else redis.Redis.from_url(url, **options)


def _migrate(old: "redis.Redis", slot: int, port: int, count: int) -> bool:
    """Move some keys of a slot; return whether there were any."""
    keys: Any = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
    if keys:
        old.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 10_000, "KEYS", *keys)
    return bool(keys)
