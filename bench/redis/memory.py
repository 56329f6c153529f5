"""Measure Redis's memory for requests and replies.

Entries and reply logs are written by the code of gateways and workers, on an embedded server or on the one that
--redis-url names, whose database must be empty. The figure is the growth of used_memory per request or reply.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.flags import Parser, at_least
from orcastream.bench.redis.own_redis import info, own_redis, server_version
from orcastream.bench.redis.replies import Replies
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, Payload

_KEYS = Keys("bench-model")
_DEADLINE_AHEAD_MS = 600_000
_VOCABULARY = 150_000


@dataclass(frozen=True)
class Footprint:
    """Bytes of one of many equal objects: by the growth of used_memory, and its stream alone by MEMORY USAGE."""

    what: str
    bytes_each: float
    key_bytes_each: float


async def waiting(link: Link, prompt_tokens: int, count: int) -> Footprint:
    """Measure waiting requests of `prompt_tokens`: queue entry and `seen` key."""
    queue, rng = RequestQueue(link, _KEYS), random.Random(0)
    await queue.ensure_groups()
    before = await _used(link)
    for _ in range(count):
        prompt = tuple(rng.randrange(_VOCABULARY) for _ in range(prompt_tokens))
        request = GenerationRequest(
            id=f"cmpl-{uuid.uuid4().hex}",
            payload=Payload(prompt=prompt, max_tokens=300, temperature=0.7),
            deadline_ms=int(time.time() * 1000) + _DEADLINE_AHEAD_MS,
        )
        await queue.enqueue(request, terms=None, retention_ms=_DEADLINE_AHEAD_MS)
    each = (await _used(link) - before) / count
    stream = await _usage(link, _KEYS.requests("normal"))
    await link.call("FLUSHDB")
    return Footprint(f"waiting request, prompt of {prompt_tokens} tokens", each, stream / count)


async def finished(link: Link, tokens: int, tokens_per_event: int, count: int) -> Footprint:
    """Measure retained replies of `tokens` that have ended."""
    before = await _used(link)
    replies = await Replies.begin(link, _KEYS, count)
    for _ in range(tokens // tokens_per_event):
        await replies.advance(tokens_per_event)
    await replies.end()
    each = (await _used(link) - before) / count
    log = await _usage(link, _KEYS.reply(replies.ids[0]))
    await link.call("FLUSHDB")
    events = "one token" if tokens_per_event == 1 else f"{tokens_per_event} tokens"
    return Footprint(f"finished reply of {tokens} tokens, {events} per event", each, log)


async def _used(link: Link) -> int:
    return int((await info(link, "memory"))["used_memory"])


async def _usage(link: Link, key: str) -> int:
    return int(await link.call("MEMORY", "USAGE", key, "SAMPLES", 0))


async def measure(url: str | None, count: int) -> tuple[str, list[Footprint]]:
    """Return the server's version, and the footprint of everything that a request leaves."""
    async with own_redis(url) as (_, link):
        await waiting(link, 4096, 50)  # the server's buffers for this connection grow only once
        found = [await waiting(link, prompt_tokens, count) for prompt_tokens in (32, 512, 4096)]
        found += [await finished(link, 300, tokens_per_event, count) for tokens_per_event in (1, 4)]
        return await server_version(link), found


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status."""
    parser = Parser("redis-memory", __doc__)
    parser.add_argument("--redis-url", help="an empty database (default: an embedded server)")
    parser.add_argument("--count", type=at_least(1), default=500, help="requests per figure (%(default)s)")
    options = parser.parse_args(list(arguments))
    version, found = asyncio.run(measure(options.redis_url, options.count))
    table = Table(box=box.SIMPLE, pad_edge=False, title=version, title_justify="left")
    table.add_column("what")
    table.add_column("bytes each", justify="right")
    table.add_column("MEMORY USAGE of the stream", justify="right")
    for footprint in found:
        table.add_row(footprint.what, f"{footprint.bytes_each:,.0f}", f"{footprint.key_bytes_each:,.0f}")
    Console(width=110, highlight=False).print(table)
    return 0
