"""A service under observation: Redis, a gateway, workers, clients, and Prometheus both ways."""

import os
import threading
import time
from pathlib import Path

import httpx

from demo.prompts import LONG_COUNT
from tests.observe.panels import Said, look
from tests.observe.server import PrometheusServer, Target
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.ports import free_port
from tests.redis_server import BINARIES, RedisServer
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.telemetry.prometheus_binaries import PROMETHEIS
from tests.worker.worker_process import MODEL, WorkerProcess

BODY = {"model": MODEL, "prompt": LONG_COUNT[0], "max_tokens": 400, "temperature": 0, "timeout": 600}


class Clients:
    """Each asks for one long answer after another, until told to stop."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self.finished: list[Stream] = []
        self.tokens = 0
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self.finished.append(Stream().post(self._url, BODY, {}))
            except (AssertionError, httpx.HTTPError):
                self._stop.wait(0.2)

    def stop(self) -> None:
        """Ask nothing more; what runs is read to its end."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the ends."""
        for thread in self._threads:
            thread.join()


class ObservedService:
    """`every_s`: how often metrics are scraped, exported and evaluated. One server scrapes, another takes OTLP.

    Without a Prometheus that takes OTLP `servers` has the first alone.
    """

    def __init__(self, directory: Path, every_s: float, *, workers: int, lease_ms: int) -> None:
        self.every_s = every_s
        self._directory = directory
        self._lease_ms = lease_ms
        self.receiver = OtlpReceiver()
        self.servers = self._start_prometheus()
        self._redis = RedisServer(_redis_binary(), directory / "redis", aof="everysec", options=["--maxmemory", "256mb"])
        self._redis.start()
        self.workers: dict[str, WorkerProcess] = {}
        self._ports: dict[str, int] = {}
        environment = self._environment()
        os.environ.update(environment)
        self.gateway = GatewayProcess(self._redis.url, directory / "gateway.log", lease_ms=lease_ms)
        self.start_workers(workers)

    def __enter__(self) -> "ObservedService":
        self.receiver.__enter__()
        self.gateway.wait_ready()
        for server in self.servers:
            server.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.gateway, *self.workers.values(), *self.servers, self._redis):
            process.kill()
        self.receiver.__exit__()

    def _start_prometheus(self) -> list[PrometheusServer]:
        oldest = min(PROMETHEIS, key=lambda one: tuple(map(int, one.version.split("."))))
        servers = [PrometheusServer(oldest, self._directory / "scraping", self.every_s, takes_otlp=False)]
        newest = next((one for one in PROMETHEIS if one.takes_otlp), None)
        if newest is not None:
            servers.append(PrometheusServer(newest, self._directory / "otlp", self.every_s, takes_otlp=True))
        return servers

    def _environment(self) -> dict[str, str]:
        """All traces and logs to our own collector, metrics straight to Prometheus."""
        metrics = [server.otlp_url for server in self.servers if server.takes_otlp]
        return {
            **self.receiver.environment(OTEL_METRIC_EXPORT_INTERVAL=f"{self.every_s * 1000:.0f}"),
            **({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": metrics[0]} if metrics else {"OTEL_METRICS_EXPORTER": "none"}),
            "ORCASTREAM_METRICS": "true",
            "ORCASTREAM_REQUIRE_WORKER": "false",
        }

    def start_workers(self, number: int) -> None:
        """Start more of them, and wait until they serve."""
        started = []
        for _ in range(number):
            port = free_port()
            log = self._directory / f"worker-{port}.log"
            settings = {"lease_ms": self._lease_ms, "admin_port": port, "max_batch_size": 16}
            started.append((WorkerProcess(self._redis.url, log, **settings), port))
        for worker, port in started:
            name = worker.wait_serving()
            self.workers[name], self._ports[name] = worker, port
        targets = [Target("orcastream-worker", f"127.0.0.1:{port}") for port in self._ports.values()]
        self.servers[0].scrape([Target("orcastream-gateway", f"127.0.0.1:{self.gateway.port}"), *targets])

    def kill(self, worker: str) -> None:
        """SIGKILL; its target stays, as it does where nobody has taken it out yet."""
        self.workers.pop(worker).kill()

    def instance(self, server: PrometheusServer, worker: str) -> str:
        """What `server` calls a worker."""
        return worker if server.takes_otlp else f"127.0.0.1:{self._ports[worker]}"

    def look(self) -> dict[str, Said]:
        """Every panel now, by the way that its metrics came."""
        return {server.way: look(server, self.every_s) for server in self.servers}

    def wait(self, seconds: float) -> None:
        """Let metrics come."""
        time.sleep(seconds)


def _redis_binary() -> str:
    found = [binary for name in ("system", "embedded") if (binary := BINARIES[name]())]
    assert found, "no redis-server on this machine"
    return found[0]
