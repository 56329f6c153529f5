"""A Redis Cluster with workers and gateways, and the answer that a client must get."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from orcastream.demo.prompts import LONG_COUNT
from tests.chaos.patches import pace
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.patience import PATIENCE_S
from tests.redis_cluster import NODE_TIMEOUT_MS, RedisCluster
from tests.worker.worker_process import MODEL, WorkerProcess

PROMPT, ANSWER = LONG_COUNT
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "timeout": 120}
_PAUSE_S = 0.005
"""Before each iteration: a client that lags on a busy machine still sees an answer begin before it has ended."""


class ClusterSite:
    """A cluster with the processes around it."""

    def __init__(
        self, binary: str, directory: Path, *, replicated: bool = False, node_timeout_ms: int = NODE_TIMEOUT_MS
    ) -> None:
        self.redis = RedisCluster(binary, directory, replicated=replicated, node_timeout_ms=node_timeout_ms)
        self.directory = directory
        self.workers: dict[str, WorkerProcess] = {}
        self.gateways: list[GatewayProcess] = []

    def start(self, *, workers: int, gateways: int = 1, queue_lanes: int = 1) -> None:
        """Start everything and wait until it serves."""
        self.redis.start()
        started = [
            WorkerProcess(
                self.redis.url,
                self.directory / f"worker{one}.log",
                patch=partial(pace, _PAUSE_S),
                queue_lanes=queue_lanes,
            )
            for one in range(workers)
        ]
        self.gateways = [
            GatewayProcess(
                self.redis.url,
                self.directory / f"gateway{one}.log",
                redis_patience_s=PATIENCE_S,
                queue_lanes=queue_lanes,
            )
            for one in range(gateways)
        ]
        self.workers = {worker.wait_serving(): worker for worker in started}
        for gateway in self.gateways:
            gateway.wait_ready()

    def stop(self) -> None:
        """Kill all remaining processes."""
        for process in (*self.workers.values(), *self.gateways):
            process.kill()
        self.redis.stop()

    def ask(
        self,
        faults: dict[int, Callable[[Stream], None]] | None = None,
        stream: Stream | None = None,
        *,
        prompt: str = PROMPT,
    ) -> Stream:
        """Stream the answer to a prompt, with faults at the n-th chunk."""
        return (stream or Stream()).post(self.gateways[0].url, {**BODY, "prompt": prompt}, faults or {})
