"""What workers say of themselves, and who is there."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.link import Link
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One consumer of the group: what it says of itself (empty when its hash expired: gone), and its pending entries."""

    name: str
    info: dict[str, str]
    pending: int

    @property
    def alive(self) -> bool:
        """Whether it said something lately."""
        return bool(self.info)


class Presence:
    """One worker's hash, which expires when the worker stops beating."""

    def __init__(self, link: Link, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker

    async def beat(self, info: Mapping[str, str | int | float], *, ttl_ms: int) -> None:
        """Say `info` (flat; replaces fields of the same name) and live for another `ttl_ms`."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Delete the hash, on a clean exit."""
        raise NotImplementedError


async def list_workers(link: Link, keys: Keys) -> list[WorkerInfo]:
    """Every consumer of the model's group, dead ones with pending entries included, by name."""
    raise NotImplementedError


async def forget_dead(link: Link, keys: Keys, *, min_idle_ms: int) -> list[str]:
    """Delete consumers that are gone and hold nothing, idle for `min_idle_ms` at least; their names."""
    raise NotImplementedError
