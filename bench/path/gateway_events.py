"""A gateway's CPU time per SSE event and the delay of events: the gateway is a process, writer and clients are here."""

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from orcastream.bench.cpu_time import cpu_s
from orcastream.bench.redis.replies import Replies
from orcastream.bench.serve.gateway import served_model
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.broker.link import Link
from orcastream.cli.environment import import_path
from orcastream.cli.ports import claimable_port
from orcastream.cli.process import Process, Program
from orcastream.schemas.keys import Keys

_KEYS = Keys(DEMO_MODEL)
_HOST = "127.0.0.1"
_SETTLE_S = 1.0


@dataclass(frozen=True)
class GatewayEvents:
    """`streams` clients received `events` SSE events at `events_per_s`; `cpu_us` is the gateway's CPU time per event.

    `delay_ms` is the time from before an event's write to Redis until a client received its bytes: median and 99th
    percentile.
    """

    streams: int
    events: int
    events_per_s: float
    cpu_us: float
    delay_ms: tuple[float, float]
    load_busy: float
    """Share of a core used by writer and clients, one process: near 1, they cause the delays."""

    @property
    def per_cpu_s(self) -> float:
        """Events per second of the gateway's CPU time."""
        return 1e6 / self.cpu_us


@asynccontextmanager
async def gateway(redis_url: str) -> AsyncIterator[tuple[str, int]]:
    """Yield URL and pid of a gateway for the demo model that requires no worker."""
    port = claimable_port(_HOST, 0, "port")
    values = {"redis_url": redis_url, "port": port, "require_worker": False, "log_level": "warning"}
    variables = {f"ORCASTREAM_{name.upper()}": str(value) for name, value in values.items()}
    command = (sys.executable, "-m", "orcastream.cli.main", "gateway")
    process = await Process.spawn(Program("gateway", command, {**variables, **import_path()}), lambda _: None)
    try:
        url = f"http://{_HOST}:{port}"
        await served_model(url)
        yield url, process.pid
    finally:
        process.terminate()
        await process.wait()


async def gateway_events(
    redis_url: str, link: Link, *, streams: int, events_per_s: float, seconds: float
) -> GatewayEvents:
    """Write one event to each log at a steady pace; every client must receive every event."""
    replies = await Replies.begin(link, _KEYS, streams, tokens=_letters())
    async with gateway(redis_url) as (url, pid):
        clients = [_Client(url, request_id) for request_id in replies.ids]
        await asyncio.gather(*(client.connect() for client in clients))
        written_s: list[float] = []
        interval_s = streams / events_per_s
        await replies.advance(1)
        await asyncio.sleep(_SETTLE_S)
        gc.collect()
        gc.freeze()  # a garbage collection here would count as the gateway's delay
        used_s, own_s, begun_s = cpu_s(pid), time.process_time(), time.monotonic()
        for number in range(max(1, int(seconds / interval_s))):
            await asyncio.sleep(begun_s + number * interval_s - time.monotonic())
            written_s.append(time.monotonic())
            await replies.advance(1)
        await _until(lambda: all(client.num_events > len(written_s) for client in clients))
        used_s = cpu_s(pid) - used_s
        load_busy = (time.process_time() - own_s) / (time.monotonic() - begun_s)
        gc.unfreeze()
        await replies.end()
        await asyncio.gather(*(client.ended for client in clients))
    await link.call("FLUSHDB")
    delays = sorted(
        at_s - written_s[number]
        for client in clients
        for number, at_s in enumerate(client.at_s[1 : len(written_s) + 1])
    )
    events = streams * len(written_s)
    cuts = statistics.quantiles(delays, n=100)
    return GatewayEvents(
        streams, events, events / (written_s[-1] - written_s[0] + interval_s), used_s / events * 1e6,
        (cuts[49] * 1000, cuts[98] * 1000), load_busy,
    )  # fmt: skip


class _Client(asyncio.Protocol):
    """A cheap follower of one reply: it only counts events with text and notes their arrival."""

    def __init__(self, url: str, request_id: str) -> None:
        self._url = urlsplit(url)
        self._path = f"/v1/requests/{request_id}/events"
        self.num_events = 0
        self.at_s: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        """Send the request and wait until the answer begins."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self, self._url.hostname or "", self._url.port or 80)
        request = f"GET {self._path} HTTP/1.1\r\nHost: {self._url.netloc}\r\n\r\n"
        transport.write(request.encode())
        await self._begun

    def data_received(self, data: bytes) -> None:
        """Count events: each one with text has an id and begins in its own chunk."""
        count = data.count(b'"event_id":')
        self.num_events += count
        self.at_s += [time.monotonic()] * count
        if not self._begun.done():
            self._begun.set_result(None)
        if b"data: [DONE]" in data and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if the connection is lost before the end."""
        if not self.ended.done():
            self.ended.set_exception(
                RuntimeError(f"{self._path}: the gateway broke off after {self.num_events} events")
            )


def _letters() -> Sequence[int]:
    """Return tokens of the demo model whose text is complete on its own."""
    from orcastream import demo
    from orcastream.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    return [ids[0] for ids in map(tokenizer.encode, "abcdefghijklmnop") if len(ids) == 1]


async def _until(reached: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 30
    while not reached():
        if time.monotonic() > give_up_s:
            raise RuntimeError("the gateway did not deliver every event within 30 s")
        await asyncio.sleep(0.02)
