"""What workers say of themselves, and who is there."""

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from broker.connection import Connection
from broker.errors import require
from broker.queue import ensure_groups
from broker.resp import fields_of
from broker.scripts import FORGET, Command
from schemas.keys import CLASSES, GROUP, Keys

STATES: Final = ("serving", "draining", "stalled")
"""What a worker may report as its `state`."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One consumer of the group: what it says of itself (empty: it is gone), and how many entries it holds."""

    name: str
    info: dict[str, str]
    pending: int

    @property
    def alive(self) -> bool:
        """Whether it said something lately."""
        return bool(self.info)


def new_process_name() -> str:
    """A name that no process had before: host, pid, random. A worker's is also its consumer's in the groups."""
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
        """Say `info` (flat, not empty; replaces fields of the same name) and live for another `ttl_ms`.

        The first beat joins the consumer group, so that the worker can be listed before its first claim. Raises
        LinkLost, Unwritable.
        """
        key = self._keys.worker(self._worker)
        flat = [str(part) for item in info.items() for part in item]
        commands: list[Command] = [("HSET", key, *flat), ("PEXPIRE", key, ttl_ms)]
        if not self._joined:
            await ensure_groups(self._link, self._keys)
            stream = self._keys.requests(CLASSES[0])
            commands.append(("XGROUP", "CREATECONSUMER", stream, GROUP, self._worker))
        require(await self._link.call_many(commands))
        self._joined = True

    async def leave(self) -> None:
        """Delete the hash, on a clean exit."""
        await self._link.call("DEL", self._keys.worker(self._worker))


async def list_workers(link: Connection, keys: Keys) -> list[WorkerInfo]:
    """Every consumer of the model's group, by name; dead ones that still hold entries included."""
    pending: dict[str, int] = {}
    for consumers in await link.call_many([("XINFO", "CONSUMERS", keys.requests(name), GROUP) for name in CLASSES]):
        if isinstance(consumers, ResponseError):
            continue  # no stream or no group yet
        for flat in consumers:
            consumer: dict[bytes, Any] = fields_of(flat)
            name = consumer[b"name"].decode(errors="replace")
            pending[name] = pending.get(name, 0) + consumer[b"pending"]
    names = sorted(pending)
    hashes = await link.call_many([("HGETALL", keys.worker(name)) for name in names])
    require(hashes)
    return [WorkerInfo(name, fields_of(_texts(flat)), pending[name]) for name, flat in zip(names, hashes, strict=True)]


async def forget_dead(link: Connection, keys: Keys, *, min_idle_ms: int) -> list[str]:
    """Delete consumers that are gone, hold nothing and have been idle for `min_idle_ms`; their names.

    One that holds entries is never deleted: they would be lost with it.
    """
    forgotten = []
    for worker in await list_workers(link, keys):
        if worker.alive or worker.pending:
            continue
        calls = [FORGET.call([keys.requests(name)], [GROUP, worker.name, min_idle_ms]) for name in CLASSES]
        replies = await link.call_many(calls)
        require(replies)
        if any(replies):
            forgotten.append(worker.name)
    return forgotten


def _texts(raw: list[bytes]) -> list[str]:
    return [value.decode(errors="replace") for value in raw]
