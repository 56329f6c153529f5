"""Requests whose adapters are not in memory yet."""

import asyncio
import logging

from orcastream.engine import UnsupportedAdapter
from orcastream.schemas.errors import ErrorCode
from orcastream.worker.adapter_shelf import AdapterShelf
from orcastream.worker.running import Running

log = logging.getLogger("orcastream.worker")


class AdapterWaits:
    """Each request waits separately and delays nothing else: its adapter is read alongside the engine's iterations."""

    def __init__(self, shelf: AdapterShelf) -> None:
        self._shelf = shelf
        self._waits: dict[Running, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def has_none(self, running: Running) -> bool:
        """Whether `ready` would return at once."""
        name = running.request.payload.adapter
        return not name or running.adapter is not None or self._shelf.at_hand(name)

    async def ready(self, running: Running) -> None:
        """Return once `running` holds its adapter, or must end without it."""
        name = running.request.payload.adapter
        if not name or running.adapter is not None or running.ended:
            return
        wait = self._waits.get(running)
        if wait is None:
            wait = self._waits[running] = asyncio.create_task(self._fetch(running, name))
            wait.add_done_callback(lambda _: self._waits.pop(running))  # also if it was cancelled before it began
        await asyncio.wait([wait])
        if not wait.cancelled():
            wait.result()

    def abandon(self, running: Running) -> None:
        """Cancel the wait of `running`, which must end or belongs to another worker."""
        wait = self._waits.get(running)
        if wait is not None:
            wait.cancel()

    def abandon_all(self) -> None:
        """Cancel all waits: nothing is started here any more."""
        for wait in self._waits.values():
            wait.cancel()

    async def _fetch(self, running: Running, name: str) -> None:
        try:
            held = await self._shelf.hold(name)
        except (UnsupportedAdapter, OSError) as error:
            log.error("an adapter cannot be read", extra=running.log_fields(adapter=name, why=str(error)))
            running.fail(ErrorCode.ENGINE_ERROR, f"the adapter {name!r} cannot be read: {error}", "adapter")
        else:
            if running.closed:
                held.release()
            else:
                running.adapter = held
