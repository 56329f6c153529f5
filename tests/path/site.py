"""Everything that a client uses, as real processes around one Redis server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orcastream.schemas.events import Started, decode_event
from orcastream.schemas.keys import Keys
from tests.path.gateway_process import GatewayProcess
from tests.redis_server import RedisServer
from tests.worker.worker_process import MODEL, WorkerProcess


class Site:
    """One Redis server with the processes around it."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        self.server = server
        self._directory = directory
        self.workers: dict[str, WorkerProcess] = {}
        self.gateways: list[GatewayProcess] = []
        self._count = 0

    def start(self, *, workers: int, gateways: int = 1, **settings: object) -> None:
        """Start processes, workers with `settings`, and wait until they serve."""
        started = [self._new(WorkerProcess, **settings) for _ in range(workers)]
        self.gateways += [self._new(GatewayProcess) for _ in range(gateways)]
        self.workers |= {worker.wait_serving(): worker for worker in started}
        for gateway in self.gateways:
            gateway.wait_ready()

    def replace_gateway(self, old: GatewayProcess) -> None:
        """Start a gateway at the address of the dead `old`, and wait until it serves."""
        new = self._new(GatewayProcess, port=old.port)
        self.gateways[self.gateways.index(old)] = new
        new.wait_ready()

    def replace_worker(self, name: str) -> None:
        """Kill a worker and start another one; do not wait until it serves."""
        self.workers.pop(name).kill()
        new = self._new(WorkerProcess)
        self.workers[f"pid {new.pid}"] = new

    def writers(self, request_id: str) -> set[str]:
        """Return the workers that began an epoch of a request."""
        return set(self._epochs(request_id))

    def writer(self, request_id: str) -> WorkerProcess:
        """Return the worker that began the newest epoch of a request: on a busy machine there may be several epochs."""
        return self.workers[self._epochs(request_id)[-1]]

    def _epochs(self, request_id: str) -> list[str]:
        """Return the worker of each epoch."""
        with self.server.client() as client:
            events = [decode_event(fields) for _, fields in client.xrange(Keys(MODEL).reply(request_id))]
        return [event.worker for event in events if isinstance(event, Started)]

    def _new(self, kind: Callable[..., Any], **settings: object) -> Any:
        self._count += 1
        return kind(self.server.url, self._directory / f"{self._count}.log", **settings)

    def stop(self) -> None:
        """Kill all remaining processes."""
        for process in (*self.workers.values(), *self.gateways):
            process.kill()

    @property
    def url(self) -> str:
        """The URL of the first gateway."""
        return self.gateways[0].url
