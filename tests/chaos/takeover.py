"""How long a stream pauses: `python -m tests.chaos.takeover`, real processes under a steady load of streams.

Workers are killed and told to stop, then all workers and gateways are restarted one after the other, and finally
overloaded workers are left alone. Times are measured by clients over HTTP. Exit status 1: a bound was exceeded.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.cancelling import cancel
from tests.chaos.catalogue import Catalogue
from tests.chaos.http_client import HttpClient, Reply
from tests.chaos.patches import apply
from tests.chaos.questions import MAX_TOKENS
from tests.chaos.record import Recorder, Seen
from tests.chaos.services import LEASE_MS, Service, Site

_PAUSE_S = 0.008
_SETTLE_S = 1.5
_TIMEOUT_S = 120.0
_FULL_LOAD = 4
"""Times as many streams as usual."""
KILLED_S = LEASE_MS / 1000 + 1
STOPPED_S = 1.0
ROLLING_S = 3.0


class _TimedReply(Reply):
    """Records when text arrived."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.times: list[float] = []

    def _take_id(self, event_id: str) -> None:
        super()._take_id(event_id)
        self.times.append(time.monotonic())


class Streams:
    """A number of clients, each of which requests one long answer after the other."""

    def __init__(self, http: HttpClient, recorder: Recorder, catalogue: Catalogue) -> None:
        self._http = http
        self._recorder = recorder
        self._prompts = [one.payload["prompt"] for one in catalogue.questions if not one.fixed]
        self.replies: list[_TimedReply] = []
        self.failed: list[str] = []

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Send requests inside the block; then wait until the last answers are complete."""
        ending = asyncio.Event()
        clients = [asyncio.create_task(self._ask(number, ending)) for number in range(count)]
        try:
            await asyncio.sleep(2 * _SETTLE_S)
            yield
        finally:
            ending.set()
            await asyncio.gather(*clients)

    def longest_pause_s(self, begin: float) -> float:
        """Return the longest time without text in any stream that ended after `begin` (monotonic)."""
        pauses = [
            b - max(a, begin)
            for reply in self.replies
            for a, b in zip(reply.times, reply.times[1:], strict=False)
            if b > begin
        ]
        return max(pauses, default=0.0)

    async def _ask(self, number: int, ending: asyncio.Event) -> None:
        while not ending.is_set():
            payload = {"prompt": self._prompts[number % len(self._prompts)], "max_tokens": MAX_TOKENS}
            payload |= {"ignore_eos": True, "temperature": 0.0}
            name = f"cmpl-stream-{len(self.replies):05d}"
            seen = Seen(name, "stay", payload, frozenset({"finished"}))
            self._recorder.add(seen)
            reply = _TimedReply(self._http, seen, "normal", _TIMEOUT_S)
            self.replies.append(reply)
            await reply.read(until=time.monotonic() + _TIMEOUT_S)
            if seen.ended != "finished" or seen.problems:
                self.failed.append(f"{name}: {seen.ended} {seen.problems}")


async def _end(site: Site, service: Service, number: signal.Signals) -> None:
    async with service.disturbed:
        service.signal(number)
        await service.ended()
        await site.revive(service)


async def _each(site: Site, streams: Streams, number: signal.Signals, rounds: int) -> list[float]:
    """End one worker after the other; return the longest pause after each."""
    pauses: list[float] = []
    for turn in range(rounds):
        begin = time.monotonic()
        await _end(site, site.workers[turn % len(site.workers)], number)
        await asyncio.sleep(_SETTLE_S + LEASE_MS / 1000)
        pauses.append(streams.longest_pause_s(begin))
        await asyncio.sleep(_SETTLE_S)
    return pauses


async def _roll(site: Site, streams: Streams) -> list[float]:
    """Restart every worker and every gateway, one at a time."""
    begin = time.monotonic()
    for service in site.services:
        await _end(site, service, signal.SIGTERM)
    await asyncio.sleep(_SETTLE_S)
    return [streams.longest_pause_s(begin)]


async def _leave_alone(recorder: Recorder, seconds: float) -> int:
    """Do nothing; return how many epochs were begun in addition to the first of each request."""
    before = _extra_epochs(recorder)
    await asyncio.sleep(seconds)
    return _extra_epochs(recorder) - before


def _extra_epochs(recorder: Recorder) -> int:
    return sum(max(0, sum(one.type == "started" for one in log.watched) - 1) for log in recorder.logs.values())


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the whole measurement and return the figures."""
    site = Site("always", directory, patch=partial(apply, _PAUSE_S), grace_s=2)
    catalogue = Catalogue.load()
    await site.redis.start()
    await site.start()
    http = HttpClient([gateway.url for gateway in site.gateways], Random(options.seed))
    recorder = Recorder(site.redis.observer, site.redis.queue)
    watching = asyncio.create_task(recorder.watch())
    streams = Streams(http, recorder, catalogue)
    rows: dict[str, Any] = {}
    acts: dict[str, tuple[float, Callable[[], Awaitable[list[float]]]]] = {
        "worker killed": (KILLED_S, lambda: _each(site, streams, signal.SIGKILL, options.rounds)),
        "worker told to stop": (STOPPED_S, lambda: _each(site, streams, signal.SIGTERM, options.rounds)),
        "all restarted in turn": (ROLLING_S, lambda: _roll(site, streams)),
    }
    try:
        for name, (bound_s, act) in acts.items():
            async with streams.running(options.streams):
                pauses = await act()
            median_s = round(statistics.median(pauses), 2)
            rows[name] = {"times": len(pauses), "median_s": median_s, "longest_s": round(max(pauses), 2)}
            rows[name]["bound_s"] = bound_s
        async with streams.running(_FULL_LOAD * options.streams):
            taken_over = await _leave_alone(recorder, options.full_load_s)
    finally:
        await cancel([watching])
        await http.close()
        await site.stop()
    rows["full load"] = {"seconds": options.full_load_s, "streams": _FULL_LOAD * options.streams}
    rows["full load"]["false_takeovers"] = taken_over
    return rows | {"requests": len(streams.replies), "failed": streams.failed, "lease_s": LEASE_MS / 1000}


def main(arguments: list[str]) -> int:
    """Run the measurement and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.takeover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="workers killed, and as many told to stop")
    parser.add_argument("--streams", type=int, default=8, help="concurrent answers")
    parser.add_argument("--full-load-s", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default=None, help="where to write the figures")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="takeover-") as directory:
        figures = asyncio.run(measure(options, Path(directory)))
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text)
    late = any(
        row["longest_s"] > row["bound_s"] for row in figures.values() if isinstance(row, dict) and "bound_s" in row
    )
    return int(late or bool(figures["failed"]) or figures["full load"]["false_takeovers"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
