"""An outside view of one model's queue: its length, the age of its oldest unclaimed entry, and its workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection, time_ms
from orcastream.broker.presence import STATES, list_workers
from orcastream.broker.resp import fields_of
from orcastream.schemas.keys import CLASSES, GROUP, Keys


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue, all but `workers` by class. `lengths`: entries waiting and running; `claimed`: those that a
    worker holds; `ages_s`: age of the oldest unclaimed entry, 0 if there is none. `workers`: live workers by the state
    that they report; 0 for a state without workers.
    """

    lengths: Mapping[str, int]
    claimed: Mapping[str, int]
    ages_s: Mapping[str, float]
    workers: Mapping[str, int]


async def read_queue_state(link: Connection, keys: Keys) -> QueueState:
    """Read the state in four round trips, none of which scans a stream. Raises LinkLost, ResponseError."""
    streams = [one.requests(name) for one in keys.each_lane for name in CLASSES]
    commands = [command for key in streams for command in (("XLEN", key), ("XINFO", "GROUPS", key))]
    now, *replies = await link.call_many([("TIME",), *commands])
    if isinstance(now, ResponseError):
        raise now
    lengths = [0 if isinstance(reply, ResponseError) else int(reply) for reply in replies[::2]]
    groups = [_own_group(reply) for reply in replies[1::2]]
    starts = ["-" if group is None else f"({group[b'last-delivered-id'].decode()}" for group in groups]
    claimed = [0 if group is None else int(group[b"pending"]) for group in groups]
    oldest = await link.call_many(
        [("XRANGE", key, start, "+", "COUNT", 1) for key, start in zip(streams, starts, strict=True)]
    )
    ages = [_age_s(entries, time_ms(now)) for entries in oldest]
    alive = Counter(worker.info.get("state", "serving") for worker in await list_workers(link, keys) if worker.alive)
    workers = {**dict.fromkeys(STATES, 0), **alive}
    number = len(CLASSES)
    return QueueState(
        {name: sum(lengths[rank::number]) for rank, name in enumerate(CLASSES)},
        {name: sum(claimed[rank::number]) for rank, name in enumerate(CLASSES)},
        {name: max(ages[rank::number]) for rank, name in enumerate(CLASSES)},
        workers,
    )


def _own_group(groups: Sequence[Any] | ResponseError) -> dict[bytes, Any] | None:
    """Return what XINFO reports about the workers' group; None if there is no stream or group."""
    if isinstance(groups, ResponseError):
        return None
    found = (fields_of(flat) for flat in groups)
    return next((group for group in found if group[b"name"] == GROUP.encode()), None)


def _age_s(entries: Sequence[Any] | ResponseError, now_ms: int) -> float:
    if isinstance(entries, ResponseError) or not entries:
        return 0.0
    return max(0, now_ms - int(entries[0][0].partition(b"-")[0])) / 1000
