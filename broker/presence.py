"""The workers' own reports, and the list of workers."""

import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.queue import RequestQueue
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import BEAT, FORGET, Command
from orcastream.schemas.keys import CLASSES, GROUP, Keys

STATES: Final = ("serving", "draining", "stalled")
"""The values that a worker may report as its `state`."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One consumer of the group: its own report (empty: it is gone), and how many entries it holds.

    `readable`: whether the report can be read now.
    """

    name: str
    info: dict[str, str]
    pending: int
    readable: bool = True

    @property
    def alive(self) -> bool:
        """Whether it reported recently."""
        return bool(self.info)


def new_process_name() -> str:
    """Return a name that no process had before: host, pid, random. A worker's is also its consumer name."""
    host = re.sub(r"[^A-Za-z0-9_.\-]", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Presence:
    """One worker's hash, which expires when the worker stops beating."""

    def __init__(self, link: Connection, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._joined = False

    async def beat(self, info: Mapping[str, str | int | float], *, ttl_ms: int) -> None:
        """Report `info` (flat, not empty; replaces fields of the same name) and live for another `ttl_ms`.

        The first beat joins the consumer group, so that the worker is listed before its first claim. So does a beat
        after the hash had expired: a process that found it gone may have deleted the consumer. Raises LinkLost,
        Unwritable.
        """
        key = self._keys.worker(self._worker)
        flat = [str(part) for item in info.items() for part in item]
        (new_fields,) = replies = await self._link.call_many([BEAT.call([key], [ttl_ms, *flat])])
        require(replies)
        if not self._joined or new_fields == len(info):
            await self._join()

    async def _join(self) -> None:
        await RequestQueue(self._link, self._keys).ensure_groups()
        streams = [one.requests(CLASSES[0]) for one in self._keys.each_lane]
        joins: list[Command] = [("XGROUP", "CREATECONSUMER", stream, GROUP, self._worker) for stream in streams]
        replies = await self._link.call_many(joins)
        _require_rights(replies)
        self._joined = not any(isinstance(reply, ResponseError) for reply in replies)

    async def leave(self) -> None:
        """Delete the hash, on a clean exit."""
        await self._link.call("DEL", self._keys.worker(self._worker))


async def list_workers(link: Connection, keys: Keys, *, before: Sequence[WorkerInfo] = ()) -> list[WorkerInfo]:
    """Return every consumer of the model's group, by name, including dead ones that still hold entries.

    Where a report cannot be read now, since its node of a cluster is down, the one in `before` counts. Raises LinkLost,
    Unwritable.
    """
    pending: dict[str, int] = {}
    streams = [one.requests(name) for one in keys.each_lane for name in CLASSES]
    listed = await link.call_many([("XINFO", "CONSUMERS", stream, GROUP) for stream in streams])
    _require_rights(listed)
    for consumers in listed:
        if isinstance(consumers, ResponseError):
            continue  # no stream or no group yet
        for flat in consumers:
            consumer: dict[bytes, Any] = fields_of(flat)
            name = consumer[b"name"].decode(errors="replace")
            pending[name] = pending.get(name, 0) + consumer[b"pending"]
    names = sorted(pending)
    hashes = await link.call_many([("HGETALL", keys.worker(name)) for name in names])
    readable = [not isinstance(flat, ResponseError) for flat in hashes]
    earlier = {worker.name: worker.info for worker in before}
    infos = [
        fields_of(_texts(flat)) if known else earlier.get(name, {})
        for name, flat, known in zip(names, hashes, readable, strict=True)
    ]
    if not any(readable) and not any(infos):
        require(hashes)
    return [
        WorkerInfo(name, info, pending[name], known) for name, info, known in zip(names, infos, readable, strict=True)
    ]


async def forget_dead(link: Connection, keys: Keys, *, min_idle_ms: int) -> list[str]:
    """Delete consumers that are gone, hold nothing and have been idle for `min_idle_ms`; return their names.

    A consumer that holds entries is never deleted: they would be lost with it.
    """
    forgotten = []
    streams = [one.requests(name) for one in keys.each_lane for name in CLASSES]
    for worker in await list_workers(link, keys):
        if worker.alive or worker.pending or not worker.readable:
            continue
        calls = [FORGET.call([stream], [GROUP, worker.name, min_idle_ms]) for stream in streams]
        replies = await link.call_many(calls)
        if any(reply == 1 for reply in replies):
            forgotten.append(worker.name)
    return forgotten


def _require_rights(replies: Iterable[Any]) -> None:
    """Raise Unwritable if this user may not run one of the commands, which is no matter of a single stream."""
    require(reply for reply in replies if isinstance(reply, NoPermissionError))


def _texts(raw: list[bytes]) -> list[str]:
    return [value.decode(errors="replace") for value in raw]
