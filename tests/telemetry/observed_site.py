"""A gateway and workers as real processes that report to a collector, on their own Redis server."""

from pathlib import Path
from typing import Any

from orcastream.schemas.events import EventId, Started, decode_event
from tests.path.gateway_process import GatewayProcess
from tests.redis_server import RedisServer
from tests.telemetry.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.worker.producer import Producer
from tests.worker.worker_process import PACED, WorkerProcess

BUDGET = 16
"""Token budget of the workers: a prompt that is longer is computed in chunks."""


class ObservedSite:
    """`receiver` gets the processes' telemetry, by this process's environment; `producer` posts directly to Redis."""

    def __init__(self, receiver: OtlpReceiver, server: RedisServer, directory: Path) -> None:
        self.receiver = receiver
        self.producer = Producer(server.url)
        self.workers: dict[str, WorkerProcess] = {}
        self._server = server
        self._directory = directory
        self._count = 0
        self.gateway = GatewayProcess(server.url, directory / "gateway.log")

    def ensure_workers(self, count: int) -> None:
        """Start workers until `count` are running, and wait until the gateway serves."""
        self.workers = {name: worker for name, worker in self.workers.items() if worker.running}
        settings: dict[str, Any] = {
            "max_num_batched_tokens": BUDGET,
            "max_batch_size": min(BUDGET, 32),
            "drain_grace_s": 0,
            "iteration_trace_ratio": 1,
            "lease_ms": 3000,  # a worker that briefly gets no CPU core keeps its requests
            "patch": PACED,
        }
        started = []
        while len(self.workers) + len(started) < count:
            self._count += 1
            started.append(WorkerProcess(self._server.url, self._directory / f"{self._count}.log", **settings))
        self.workers |= {worker.wait_serving(): worker for worker in started}
        self.gateway.wait_ready()

    def started_events(self, request_id: str) -> list[tuple[EventId, Started]]:
        """Return the started events of all epochs, from the reply log."""
        entries = self.producer.redis.xrange(self.producer.keys.reply(request_id))
        events = [(EventId.parse(entry_id), decode_event(fields)) for entry_id, fields in entries]
        return [(event_id, event) for event_id, event in events if isinstance(event, Started)]

    def process_span(self, traceparent: str | None) -> ReceivedSpan:
        """Return the span that a started event names, once it has arrived."""
        return self.receiver.wait_for(lambda receiver: receiver.span(*span_ids(traceparent)))

    def children(self, span: ReceivedSpan) -> dict[str, ReceivedSpan]:
        """Return spans of the same service inside `span`, by name; they arrive with it or before it."""
        return {one.name: one for one in self.receiver.spans if one.parent_id == span.span_id}

    def stop(self) -> None:
        """Kill the remaining processes."""
        for process in (self.gateway, *self.workers.values()):
            process.kill()
        self.producer.redis.close()


def span_ids(traceparent: str | None) -> tuple[str, str]:
    """Return trace id and span id."""
    assert traceparent is not None
    _, trace_id, span_id, _ = traceparent.split("-")
    return trace_id, span_id
