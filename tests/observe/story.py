"""What an operator sees: eight clients are served, one worker is killed, then all are, and new ones start.

Each step asserts the panels and alerts, both for scraped and for pushed metrics.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from orcastream.telemetry.names import Attribute, SpanEvent
from tests.observe.panels import Said, look
from tests.observe.peak import PER_S, WITHIN_S, Peak, wrong_until_s
from tests.observe.programs import NOT_FOUND
from tests.observe.server import PrometheusServer
from tests.observe.site import ObservedService
from tests.patience import PATIENCE_S

CLIENTS = 8
SILENT = {("redis", "Replication lag"), ("service", "Clients that left before the first token")}
"""Panels without an answer where there is no replica, and nobody gives up."""
LEAST = {
    ("service", "Requests ended"): 0.1,
    ("service", "Tokens per second"): 10,
    ("service", "Time to first token, p95"): 0.001,
    ("service", "Gaps between tokens"): 0.001,
    ("service", "Open replies"): 1,
    ("engine", "Running"): 1,
    ("engine", "Iterations per second"): 1,
    ("redis", "Commands"): 10,
    ("redis", "Memory in use"): 0.001,
    ("redis", "Append-only file"): 1,
}
"""What at least one line of a panel shows while clients are served."""
LOOK_BACK_S = 300
"""How long Prometheus goes on with a value that nobody renews: what is to be seen has to be seen well before that."""
PER_WORKER = (
    *(("engine", "Requests running per worker"), ("engine", "In use")),
    *(("redis", "Requests claimed per worker"), ("redis", "Share of the capacity in use")),
)

_OF_A_REQUEST: Final = '{service_name="orcastream-worker"} | trace_id != ``'


class Story:
    """One service, from the first client to the last; every step returns its line."""

    def __init__(self, service: ObservedService) -> None:
        self._service = service
        self._clients = service.load(CLIENTS)
        self._begun_s = 0.0
        self.moments: dict[str, float] = {}
        """Unix time of what happened."""

    def served(self) -> str:
        """Every panel has a plausible result."""
        self._begun_s = time.time()
        workers = len(self._service.workers)
        for server in self._service.servers:
            said = self._until(server, lambda said: not self._missing(said, workers), self._missing_in(workers))
            assert max(said["service", "Errors"].values()) == 0, said["service", "Errors"]
        panels = len(said) - len(SILENT)
        return f"{workers} workers serve {CLIENTS} clients: all {panels} panels say so"

    def peak_and_fall(self) -> str:
        """The rate of a peak is shown correctly, and then its end, each within 15 s and from then on."""
        service, told = self._service, []
        self.moments["peak"] = time.time()
        with Peak(service.gateway.url):
            told.append(wrong_until_s(service.servers, service.every_s, PER_S))
        self.moments["peak ends"] = time.time()
        told.append(wrong_until_s(service.servers, service.every_s, 0))
        assert max(after_s for change in told for after_s in change.values()) <= WITHIN_S, told
        rose, fell = (", ".join(f"{after_s:.1f} s {way}" for way, after_s in change.items()) for change in told)
        return f"{PER_S:.0f} refusals per second: told within a tenth after {rose}; their end after {fell}"

    def one_is_killed(self) -> str:
        """The worker is gone from every panel, and the takeover of its requests is visible."""
        service = self._service
        victim, left = service.freeze_amid_answers(), len(service.workers) - 1
        self.moments["worker killed"] = time.time()
        service.kill(victim)
        took = []
        for server in service.servers:
            name = service.instance(server, victim)
            self._until(server, lambda said, name=name: self._gone(said, name, left), lambda said: said)  # type: ignore[misc]
            took.append(f"{time.time() - self.moments['worker killed']:.0f} s {server.way}")
            self._taken_over(server)
        return f"worker {victim} is killed: gone from the panels after {', '.join(took)}; its requests taken over"

    def logs_and_traces(self) -> str:
        """Where Compose's Grafana queries: a log line of the taken-over request, and the trace that it names."""
        stores = self._service.stores
        if stores is None:
            return f"left out: {NOT_FOUND}"
        begun_s, lines, told = time.time(), [], []
        while not told:
            assert time.time() < begun_s + PATIENCE_S, lines
            time.sleep(0.5)
            lines = stores.lines(_OF_A_REQUEST, self.moments["worker killed"] - 60)
            told = [(labels, _epochs(stores.trace(labels["trace_id"]))) for labels, _ in lines if "before" in labels]
            told = [(labels, workers) for labels, workers in told if len(workers) > 1]
        labels, workers = told[0]
        assert (workers[0], workers[-1]) == (labels["before"], labels["service_instance_id"])
        took_s = time.time() - self.moments["worker killed"]
        return f"Loki has the line of a request taken over, and Tempo its trace, of both workers; after {took_s:.0f} s"

    def none_is_left(self) -> str:
        """Nothing runs, the queue waits, and its alert fires, equally fast for both kinds of metrics."""
        service = self._service
        self.moments["all killed"] = time.time()
        for worker in list(service.workers):
            service.kill(worker)
        for server in service.servers:
            self._until(server, self._nothing_runs, lambda said: said)
        took: dict[str, float] = {}
        give_up_s = time.time() + 240
        while len(took) < len(service.servers):
            assert time.time() < give_up_s, {server.way: server.firing() for server in service.servers}
            for server in service.servers:
                if server.way not in took and "OrcastreamNoWorkerForQueue" in server.firing():
                    took[server.way] = time.time() - self.moments["all killed"]
            time.sleep(0.5)
        self.moments["the alert fires"] = time.time()
        assert max(took.values()) - min(took.values()) < LOOK_BACK_S / 3, took
        shown = ", ".join(f"{seconds:.0f} s {way}" for way, seconds in took.items())
        return f"all workers are killed: Running 0, Workers 0; OrcastreamNoWorkerForQueue fires after {shown}"

    def others_come(self) -> str:
        """New workers serve the waiting requests; then the load ends, and rates fall within their window."""
        service = self._service
        self.moments["2 workers come"] = time.time()
        service.start_workers(2)
        for server in service.servers:
            self._until(server, lambda said: said["engine", "Running"]["running"] > 0, lambda said: said)
            self._until(server, lambda _, server=server: not server.firing() & {"OrcastreamNoWorkerForQueue"}, str)  # type: ignore[misc]
        self._clients.stop()
        self._clients.join()
        self.moments["load ends"] = time.time()
        broken = [stream.error for stream in self._clients.finished if not stream.done]
        assert not broken, broken
        for server in service.servers:
            self._until(server, lambda said: said["service", "Tokens per second"]["output"] == 0, lambda said: said)
        fell_s = time.time() - self.moments["load ends"]
        assert fell_s < WITHIN_S + self._service.every_s, fell_s
        answers = len(self._clients.finished)
        return (
            f"2 workers come: the alert ends, {answers} answers complete, none broken; rates at 0 after {fell_s:.0f} s"
        )

    def _missing_in(self, workers: int) -> Callable[[Said], object]:
        return lambda said: self._missing(said, workers)

    def _missing(self, said: Said, workers: int) -> dict[tuple[str, str], dict[str, float]]:
        """Return panels with wrong results while all is well."""
        missing = {panel: lines for panel, lines in said.items() if not lines and panel not in SILENT}
        for panel, least in LEAST.items():
            if max(said[panel].values(), default=0) < least:
                missing[panel] = said[panel]
        if said["service", "Workers"].get("workers") != workers:
            missing["service", "Workers"] = said["service", "Workers"]
        return missing

    def _gone(self, said: Said, name: str, left: int) -> bool:
        told = {line for panel in PER_WORKER for line in said[panel]}
        return said["service", "Workers"]["workers"] == left and name not in told

    def _taken_over(self, server: PrometheusServer) -> None:
        """Its requests are taken over, and the pauses that their clients saw are attributed.

        For an increase, the previous value must be in the window, and it may date from long before the kill.
        """

        def told(_: Said) -> bool:
            window = f"{(time.time() - self._begun_s) * 1000:.0f}ms"
            taken = server.query(f"sum(increase(orcastream_takeovers_total[{window}])) > 0")
            longest = server.query(
                "histogram_quantile(1, sum by (le) (increase("
                f'orcastream_gateway_token_gap_seconds_bucket{{orcastream_gap="takeover"}}[{window}])))'
                f" >= {0.75 * self._service.lease_s}"
            )
            return bool(taken and longest)

        self._until(server, told, lambda said: (said["redis", "Takeovers"], said["service", "Gaps between tokens"]))

    def _nothing_runs(self, said: Said) -> bool:
        waits = said["service", "In the queue"].get("requests", 0) == CLIENTS
        return waits and said["engine", "Running"] == {"running": 0} and said["service", "Workers"]["workers"] == 0

    def _until(self, server: PrometheusServer, holds: Callable[[Said], bool], why: Callable[[Said], object]) -> Said:
        """Return the panels' results once `holds`. Raises AssertionError with `why` if it never does."""
        give_up_s = time.time() + 60 + 8 * self._service.every_s
        while True:
            said = look(server, self._service.every_s)
            try:
                if holds(said):
                    return said
            except KeyError:
                pass
            assert time.time() < give_up_s, (server.way, why(said))
            time.sleep(self._service.every_s / 4)


def _epochs(spans: Sequence[dict[str, Any]]) -> list[str]:
    """Return the workers that a gateway's span names, in order."""
    events = [event for span in spans for event in span.get("events", ()) if event["name"] == SpanEvent.EPOCH]
    attributes = [{one["key"]: one["value"] for one in event["attributes"]} for event in events]
    return [one[Attribute.WORKER]["stringValue"] for one in attributes]
