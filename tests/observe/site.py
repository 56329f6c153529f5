"""A service under observation: Redis, a gateway, workers, clients, and Prometheus, scraping and pushed to."""

import signal
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from orcastream.demo.prompts import LONG_COUNT
from orcastream.schemas.events import Terminal, decode_event
from orcastream.schemas.keys import GROUP, Keys
from tests.chaos.patches import pace
from tests.observe.programs import STORE_PROGRAMS
from tests.observe.remote_write import RemoteWriter
from tests.observe.server import PrometheusServer, Target
from tests.observe.stores import Stores
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.ports import free_port
from tests.redis_server import BINARIES, RedisServer
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.telemetry.prometheus_binaries import PROMETHEIS
from tests.worker.worker_process import MODEL, WorkerProcess

BODY = {"model": MODEL, "prompt": LONG_COUNT[0], "temperature": 0, "timeout": 600}


class Clients:
    """Clients that each request one long answer after another, until told to stop."""

    def __init__(self, url: str, number: int, max_tokens: int) -> None:
        self._url = url
        self._body = {**BODY, "max_tokens": max_tokens}
        self._stop = threading.Event()
        self.finished: list[Stream] = []
        self.tokens = 0
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self.finished.append(Stream().post(self._url, self._body, {}))
            except (AssertionError, httpx.HTTPError):
                self._stop.wait(0.2)

    def stop(self) -> None:
        """Send no more requests; running answers are read to their end."""
        self._stop.set()

    def join(self) -> None:
        """Wait for all answers to end."""
        for thread in self._threads:
            thread.join()


class ObservedService:
    """`every_s`: how often metrics are scraped, exported and evaluated. The oldest Prometheus found scrapes, the newest
    gets the processes' exports by OTLP: through the `stores` of Compose if found, otherwise through the tests' own
    translation. `max_tokens`: of each answer. `pause_s`: before each iteration of a worker, so that it leaves the cores
    to others.
    """

    def __init__(
        self,
        directory: Path,
        every_s: float,
        *,
        workers: int,
        lease_ms: int,
        max_tokens: int = 400,
        pause_s: float = 0.0,
    ) -> None:
        self.every_s = every_s
        self._directory = directory
        self._lease_ms = lease_ms
        self._max_tokens = max_tokens
        self._patch_worker = partial(pace, pause_s) if pause_s else None
        self.lease_s = lease_ms / 1000
        self.receiver = OtlpReceiver()
        oldest, *_, newest = sorted([*PROMETHEIS, *PROMETHEIS], key=lambda one: tuple(map(int, one.version.split("."))))
        self.scraping = PrometheusServer(oldest, directory / "scraping", every_s, pushed=False)
        self.pushed = PrometheusServer(newest, directory / "pushed", every_s, pushed=True)
        self.servers = (self.scraping, self.pushed)
        self._writer = RemoteWriter(self.pushed.write_url)
        self.stores: Stores | None = None
        self._redis = RedisServer(
            _redis_binary(), directory / "redis", aof="everysec", options=["--maxmemory", "256mb"]
        )
        self._redis.start()
        self.receiver.__enter__()
        self._writer.__enter__()
        if STORE_PROGRAMS is not None and newest.takes_otlp:
            urls = {"metrics_url": self.pushed.otlp_url, "traces_url": self.receiver.url}
            self.stores = Stores(STORE_PROGRAMS, directory / "stores", **urls)
        self.workers: dict[str, WorkerProcess] = {}
        self._ports: dict[str, int] = {}
        self._clients: list[Clients] = []
        self._patch = pytest.MonkeyPatch()
        for name, value in self._environment().items():
            self._patch.setenv(name, value)
        self.gateway = GatewayProcess(self._redis.url, directory / "gateway.log", lease_ms=lease_ms)
        self.start_workers(workers)

    def __enter__(self) -> "ObservedService":
        self.gateway.wait_ready()
        for server in self.servers:
            server.wait_ready()
        if self.stores is not None:
            self.stores.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for clients in self._clients:
            clients.stop()
        stores = () if self.stores is None else (self.stores,)
        for process in (self.gateway, *self.workers.values(), *stores, *self.servers, self._redis):
            process.kill()
        for clients in self._clients:
            clients.join()
        self._patch.undo()
        self._writer.__exit__()
        self.receiver.__exit__()

    @property
    def exported_bytes(self) -> list[int]:
        """Return the size of each export of metrics over OTLP, without `stores`."""
        return self._writer.taken_bytes

    def _environment(self) -> dict[str, str]:
        """Return variables that send everything to the stores, or traces and logs to the tests' receiver and metrics to
        Prometheus.
        """
        if self.stores is None:
            urls = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": self._writer.url}
        else:
            urls = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.stores.url}
        return {
            **self.receiver.environment(OTEL_METRIC_EXPORT_INTERVAL=f"{self.every_s * 1000:.0f}"),
            **urls,
            "ORCASTREAM_METRICS": "true",
            "ORCASTREAM_REQUIRE_WORKER": "false",
        }

    def load(self, number: int) -> Clients:
        """Start clients that send requests until told to stop, or until the service ends."""
        self._clients.append(Clients(self.gateway.url, number, self._max_tokens))
        return self._clients[-1]

    def start_workers(self, number: int) -> None:
        """Start more workers, and wait until they serve."""
        started = []
        for _ in range(number):
            port = free_port()
            log = self._directory / f"worker-{port}.log"
            settings = {"lease_ms": self._lease_ms, "admin_port": port, "max_batch_size": 16}
            started.append((WorkerProcess(self._redis.url, log, patch=self._patch_worker, **settings), port))
        for worker, port in started:
            name = worker.wait_serving()
            self.workers[name], self._ports[name] = worker, port
        targets = [Target("orcastream-worker", f"127.0.0.1:{port}") for port in self._ports.values()]
        self.scraping.scrape([Target("orcastream-gateway", f"127.0.0.1:{self.gateway.port}"), *targets])

    def freeze_amid_answers(self) -> str:
        """Send SIGSTOP to a worker that has written part of an answer, but not its end; return its name.

        So its requests do not end before it is killed, and another worker takes them over.
        """
        while True:
            for name, worker in self.workers.items():
                worker.signal(signal.SIGSTOP)
                if self._writes_answers(name):
                    return name
                worker.signal(signal.SIGCONT)
            time.sleep(0.05)

    def _writes_answers(self, worker: str) -> bool:
        keys = Keys(MODEL)
        stream = keys.requests("normal")
        with self._redis.client() as client:
            for pending in client.xpending_range(stream, GROUP, "-", "+", 100, consumername=worker):
                for _, fields in client.xrange(stream, pending["message_id"], pending["message_id"]):
                    log = client.xrange(keys.reply(fields[b"id"].decode()))
                    if len(log) > 1 and not isinstance(decode_event(log[-1][1]), Terminal):
                        return True
        return False

    def kill(self, worker: str) -> None:
        """Send SIGKILL; its target remains, as it does until an operator removes it."""
        self.workers.pop(worker).kill()

    def instance(self, server: PrometheusServer, worker: str) -> str:
        """Return the name that `server` uses for a worker."""
        return worker if server.pushed else f"127.0.0.1:{self._ports[worker]}"


def _redis_binary() -> str:
    found = [binary for name in ("system", "embedded") if (binary := BINARIES[name]())]
    assert found, "no redis-server on this machine"
    return found[0]
