"""A master, a replica and three sentinels, all real processes, for tests of promotions."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.parent import tied_to_parent
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.redis_waiting import text, wait_until

SERVICE = "orca"
DOWN_AFTER_MS = 3000
"""A master that gets no core for a moment is not taken for dead."""


class Sentinels:
    """`servers` are the initial master and its replica; `url` leads to the current master."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        master = RedisServer(binary, directory / "master", aof="everysec")
        options = ["--replicaof", "127.0.0.1", str(master.port)]
        self.servers = (master, RedisServer(binary, directory / "replica", aof="everysec", options=options))
        self.ports = [free_port() for _ in range(3)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The URL of the sentinels."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{SERVICE}"

    def start(self) -> None:
        """Start everything, and wait until a failover could succeed."""
        for server in self.servers:
            server.start()
        for port in self.ports:
            self._start_sentinel(port)
        for port in self.ports:
            wait_until(lambda port=port: self._is_complete(port))  # type: ignore[misc]
        self.wait_replicated()

    def stop(self) -> None:
        """End everything."""
        for process in self._processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.kill()

    def master_port(self, sentinel_number: int = 0) -> int:
        """Return the port of the server that a sentinel considers the master."""
        with self._sentinel(self.ports[sentinel_number]) as sentinel:
            return int(sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def freeze_sentinel(self) -> None:
        """Send SIGSTOP to the first sentinel."""
        self._processes[0].send_signal(signal.SIGSTOP)

    def thaw_sentinel(self) -> None:
        """Send SIGCONT to the first sentinel."""
        self._processes[0].send_signal(signal.SIGCONT)

    def replace_sentinels(self, master_number: int) -> None:
        """Start sentinels without any memory in place of the old ones, and name them the master. Until the other server
        follows it, wait: it is from the master that they hear of it."""
        with self.servers[1 - master_number].client() as other:
            wait_until(lambda: other.info("replication").get("master_link_status") == "up")
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
        for port in self.ports:
            self._start_sentinel(port, master_number)
        for port in self.ports:
            wait_until(lambda port=port: self._is_complete(port))  # type: ignore[misc]

    def promote(self) -> None:
        """Make the last sentinel promote the replica, while the old master continues as a replica."""
        with self._sentinel(self.ports[-1]) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def wait_promoted(self, sentinel_number: int = 0) -> None:
        """Wait until the replica is the master, and a sentinel confirms it."""
        with self.servers[1].client() as replica:
            wait_until(lambda: replica.execute_command("ROLE")[0] == b"master")
        wait_until(lambda: self.master_port(sentinel_number) == self.servers[1].port)

    def wait_replicated(self) -> None:
        """Wait until the replica has all of the master's current data."""
        with self.servers[0].client() as master, self.servers[1].client() as replica:
            offset = master.info("replication")["master_repl_offset"]
            wait_until(lambda: _has(replica.info("replication"), offset))

    def stop_replication(self) -> None:
        """Stop the replication, so that later writes are lost with the master."""
        with self.servers[0].client() as master, self.servers[1].client() as replica:
            replica.config_set("masterauth", "no such password")
            master.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def _start_sentinel(self, port: int, master_number: int = 0) -> None:
        directory = self._directory / f"sentinel-{port}"
        directory.mkdir(exist_ok=True)
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\nlogfile {directory}/log\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[master_number].port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 10000\n"
        )
        command = tied_to_parent([self._binary, str(config), "--sentinel"])
        self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def _is_complete(self, port: int) -> bool:
        with self._sentinel(port) as sentinel:
            known = sentinel.execute_command("SENTINEL", "MASTER", SERVICE)
            if not isinstance(known, dict):
                known = dict(zip(known[::2], known[1::2], strict=True))
            texts = {text(name): text(value) for name, value in known.items()}
            return (texts["num-slaves"], texts["num-other-sentinels"], texts["flags"]) == ("1", "2", "master")

    def _sentinel(self, port: int) -> "redis.Redis":
        return redis.Redis(port=port, retry=None, socket_timeout=10)


def _has(replication: dict[str, Any], offset: int) -> bool:
    return bool(replication["master_link_status"] == "up" and replication["slave_repl_offset"] >= offset)
