"""The adapters that a worker holds in memory, for the requests that use them."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orcastream.broker.aside import aside
from orcastream.engine import UnsupportedAdapter

if TYPE_CHECKING:
    from orcastream.engine import Adapter, Adapters

log = logging.getLogger("orcastream.worker")


@dataclass(slots=True)
class _Resident:
    adapter: "Adapter"
    holders: int = 0


class HeldAdapter:
    """An adapter that stays in memory until `release`, which may be called twice."""

    def __init__(self, shelf: "AdapterShelf", resident: _Resident) -> None:
        self.adapter = resident.adapter
        self._shelf = shelf
        self._resident: _Resident | None = resident
        resident.holders += 1

    def release(self) -> None:
        """Release the adapter: its holder no longer needs it."""
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.holders -= 1
            self._shelf.released()


class AdapterShelf:
    """Holds at most `max_adapters`, each read when a request first asks for it, alongside the engine's iterations.

    If there is no room, the least recently requested adapter without a holder is evicted. If all are held, a request
    for another adapter waits for room, and later requests queue after it, whatever adapter they need. A read cannot be
    interrupted: the next one begins after it, even if its request has left. Used on the event loop.
    """

    def __init__(self, folders: Mapping[str, Path], adapters: "Adapters | None", max_adapters: int) -> None:
        """`adapters` of the engine; None: there are no `folders`."""
        self.names = tuple(folders)
        self._folders = folders
        self._adapters = adapters
        self._max_adapters = max_adapters
        self._resident: OrderedDict[str, _Resident] = OrderedDict()
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._place_wanted = False
        self._reading: asyncio.Task[_Resident] | None = None
        """The last read, which goes on in its thread if the request that it was for leaves."""
        self.reads = 0
        """How often an adapter was read."""
        self.evictions = 0
        """How often one was evicted for another."""

    @property
    def num_resident(self) -> int:
        """Adapters in memory."""
        return len(self._resident)

    def check(self) -> None:
        """Raise UnsupportedAdapter if one would be refused, as far as that shows without reading all of it."""
        for folder in self._folders.values():
            if self._adapters is not None:
                self._adapters.check(folder)

    def at_hand(self, name: str) -> bool:
        """Whether `hold` would return that adapter without a wait."""
        return name in self._resident and not self._place_wanted

    async def hold(self, name: str) -> HeldAdapter:
        """Return the adapter with that name, one of `names`. Raises UnsupportedAdapter or OSError if unreadable."""
        if not self.at_hand(name):
            async with self._turn:
                return self._held(name, await self._brought(name))
        return self._held(name, self._resident[name])

    def released(self) -> None:
        """Signal that an adapter has one holder less."""
        self._freed.set()

    def _held(self, name: str, resident: _Resident) -> HeldAdapter:
        self._resident.move_to_end(name)
        return HeldAdapter(self, resident)

    async def _brought(self, name: str) -> _Resident:
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])  # what it reads takes a place, too
        if name in self._resident:
            return self._resident[name]
        if self._adapters is None:
            raise UnsupportedAdapter(f"{name}: the engine reads no adapters")
        await self._free_place()
        self._reading = asyncio.create_task(self._read(name, self._adapters))
        return await asyncio.shield(self._reading)

    async def _read(self, name: str, adapters: "Adapters") -> _Resident:
        begun_s = time.monotonic()
        adapter = await aside(partial(adapters.read, name, self._folders[name]))
        self.reads += 1
        log.info("adapter read", extra={"adapter": name, "seconds": round(time.monotonic() - begun_s, 3)})
        resident = self._resident[name] = _Resident(adapter)
        return resident

    async def _free_place(self) -> None:
        self._place_wanted = True
        try:
            while len(self._resident) >= self._max_adapters:
                self._freed.clear()
                idle = next((name for name, each in self._resident.items() if not each.holders), None)
                if idle is None:
                    await self._freed.wait()
                else:
                    del self._resident[idle]
                    self.evictions += 1
        finally:
            self._place_wanted = False
