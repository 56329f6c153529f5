"""What remains in Redis when nothing waits or runs: keys that never expire, work that is still counted, clients."""

from typing import Any

from tests.chaos import wire
from tests.chaos.wire import Queue

_LASTING = ("requests:realtime", "requests:high", "requests:normal", "requests:low")
_LASTING += ("dead", "control", "work", "throughput")
_NEVER = -1


async def find_leftovers(client: Any, queue: Queue) -> dict[str, int]:
    """Return what is left, with numbers. Of `client`'s server, or of all masters of its cluster."""
    left: dict[str, int] = {}
    for key in queue.streams():
        length = await client.xlen(key)
        pending = (await client.xpending(key, wire.GROUP))["pending"] if await client.exists(key) else 0
        left |= {key: length, f"{key} pending": pending}
    for key in queue.all_of("work"):
        left |= {f"{key} {name.decode()}": _number(value) for name, value in (await client.hgetall(key)).items()}
    lasting = {key for kind in _LASTING for key in queue.all_of(kind)}
    async for key in client.scan_iter(count=1000):
        if key.decode() not in lasting and await client.pttl(key) == _NEVER:
            left[f"{key.decode()} without expiry"] = 1
    return {what: count for what, count in left.items() if count}


def _number(value: bytes) -> int:
    """Return a sum of the books, or 1 for the record of an entry: tokens and tenant."""
    return int(value) if value.lstrip(b"-").isdigit() else 1
