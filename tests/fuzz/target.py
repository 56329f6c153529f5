"""Gives inputs to the running processes and reports how they mishandled them."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from orcastream.schemas.keys import CLASSES
from tests.fuzz.calls import Call
from tests.fuzz.entries import Command
from tests.fuzz.http_client import Answer, send
from tests.fuzz.probe import Probe
from tests.fuzz.site import Site

T = TypeVar("T")

MAX_HELD_S: Final = 0.05
_PATIENCE_S: Final = 0.5
_STUCK_S: Final = 30.0
_AGAIN: Final = 2
"""How often what held a process is tried again, before the input is blamed."""


class Violation(AssertionError):
    """An input had a forbidden effect. `kind` is one of KINDS."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind


KINDS: Final = ("crash", "stuck", "server_error", "held", "memory")


class Target:
    """The site under test; counts its inputs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.counts = {"entries": 0, "keys": 0, "calls": 0, "schemathesis": 0}
        self.answers: dict[str, int] = {}
        self.dead_letters = 0
        self.crash: Violation | None = None
        self.longest_held_s = dict.fromkeys((*site.processes, "worker's event loop"), 0.0)
        self.held_together_s = 0.0
        """The longest for which inputs that were given together held a process, of which no single one did."""
        self._probes = {name: Probe(port, site.processes[name].pid) for name, port in site.ports.items()}

    @property
    def total(self) -> int:
        """The number of inputs so far, including those of shrinking."""
        return sum(self.counts.values())

    def close(self) -> None:
        """Stop the probes."""
        for probe in self._probes.values():
            probe.close()

    @property
    def longest_wait_s(self) -> float:
        """Return the longest wait for a health answer, whatever the reason."""
        return max(probe.longest_wait_s for probe in self._probes.values())

    def write(self, commands: Sequence[Command]) -> None:
        """Write to Redis, and check that nothing of it remains."""
        self._give(self._write, commands)

    def call(self, calls: Sequence[Call]) -> None:
        """Send requests to the gateway, one after the other."""
        self._give(self._send, calls)

    def judge(self, answer: Answer, shown: object) -> None:
        """Raise Violation if the gateway failed on the request, or did not answer."""
        self.answers[str(answer.status)] = self.answers.get(str(answer.status), 0) + 1
        if answer.hung:
            raise Violation("stuck", f"no answer to {shown!r}")
        expired = answer.status == 504 and b'"expired"' in answer.body  # as requested
        if answer.status is not None and answer.status >= 500 and not expired:
            raise Violation("server_error", f"{answer.status} {answer.body[:300]!r} for {shown!r}")

    @property
    def _streams(self) -> list[str]:
        return [self.site.keys.requests(name) for name in CLASSES]

    def watched(self, act: Callable[[], None], shown: object) -> None:
        """Raise Violation if a process ends or is held each time that this is tried."""
        held = {name: float("inf") for name in self.longest_held_s}
        for _ in range(1 + _AGAIN):
            act()
            self._alive(shown)
            now = self._held()
            held = {name: min(held[name], now[name]) for name in held}
            if max(held.values()) <= MAX_HELD_S:
                break
        for name, seconds in held.items():
            self.longest_held_s[name] = max(self.longest_held_s[name], seconds)
            if seconds > MAX_HELD_S:
                self._alive(shown)
                raise Violation("held", f"{name} for {seconds * 1000:.0f} ms by {shown!r:.2000}")

    def _give(self, give: Callable[[Sequence[T]], None], inputs: Sequence[T]) -> None:
        """Give all inputs together; if that holds a process, one by one: no single input may."""
        longest = dict(self.longest_held_s)
        try:
            self.watched(lambda: give(inputs), inputs)
        except Violation as violation:
            if violation.kind != "held" or len(inputs) == 1:
                raise
            self.held_together_s = max(self.held_together_s, *self.longest_held_s.values())
            self.longest_held_s = longest
            for one in inputs:
                self.watched(partial(give, [one]), [one])

    def _write(self, commands: Sequence[Command]) -> None:
        pipeline = self.site.redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*(self.site.worker_name if part == "WORKER" else part for part in command))
            self.counts["entries" if command[1] in self._streams else "keys"] += 1
        pipeline.execute(raise_on_error=False)
        self._drained(commands)

    def _send(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.counts["calls"] += 1
            self.judge(send(self.site.gateway.port, call.raw, whole=call.whole), call)

    def _held(self) -> dict[str, float]:
        held = {name: probe.longest_held_s() for name, probe in self._probes.items()}
        return {**held, "worker's event loop": self.site.loop_watch.longest_held_s()}

    def _alive(self, shown: object) -> None:
        for name, process in self.site.processes.items():
            if not process.running:
                told = f"{name} ended after {shown!r:.2000}\n{self.site.tail(name)}"
                self.crash = self.crash or Violation("crash", told)  # later inputs, from shrinking, prove nothing
                raise self.crash

    def _drained(self, commands: Sequence[Command]) -> None:
        """Wait until nothing waits or runs; cancel valid requests that take long."""
        begin, cancelled = time.monotonic(), False
        while self.site.left():
            waited_s = time.monotonic() - begin
            if waited_s > _STUCK_S:
                raise Violation("stuck", f"{self.site.left()} entries after {commands!r:.2000}")
            if waited_s > _PATIENCE_S and not cancelled:
                self._cancel_all()
                cancelled = True
            self._alive(commands)
            time.sleep(0.002)
        self.dead_letters += self.site.redis.xlen(self.site.keys.dead)
        self.site.redis.delete(self.site.keys.dead)

    def _cancel_all(self) -> None:
        """Cancel running and waiting requests, as their producer would."""
        redis, keys = self.site.redis, self.site.keys
        for stream in self._streams:
            for _, fields in redis.xrange(stream):
                request_id = fields.get(b"id", b"").decode(errors="replace")
                redis.set(keys.cancel(request_id), "1", px=60_000)
                redis.xadd(keys.control, {"type": "cancel", "target": request_id})
