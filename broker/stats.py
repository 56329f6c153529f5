"""Engine statistics for observers: a lease that says that somebody watches, and a capped stream."""

from typing import Final

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import TELL_STATS
from orcastream.schemas.keys import Keys

STATS_LENGTH: Final = 1000
"""About how many entries are kept: one minute of four workers."""
STATS_KEPT_MS: Final = 60_000
_AT_ONCE: Final = 256


class StatsStream:
    """Nothing is written or read unless somebody watches. Calls raise LinkLost, and Redis's errors."""

    def __init__(self, link: Connection, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def watch(self, *, for_ms: int) -> None:
        """Make the model's workers publish for `for_ms` from now on; wake them unless somebody already watched."""
        before = await self._link.call("SET", self._keys.watched, "1", "PX", for_ms, "GET")
        if before is None:
            require(await self._link.call_many([wake_up(self._keys, Control("watch", "*"))]))

    async def is_watched(self) -> bool:
        """Whether somebody watches now."""
        return bool(await self._link.call("EXISTS", self._keys.watched))

    async def tell(self, payload: bytes) -> bool:
        """Publish `payload`; False, with nothing written, if nobody watches any more."""
        names = [self._keys.watched, self._keys.stats]
        return bool(await self._link.run(TELL_STATS, names, [STATS_LENGTH, STATS_KEPT_MS, payload]))

    async def read(self, behind: str) -> list[tuple[str, bytes]]:
        """Return the entries after the id `behind`: ids and payloads, the oldest first. Does not wait."""
        reply = await self._link.call("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._keys.stats, behind)
        return [
            (entry_id.decode(), fields_of(flat).get(b"payload", b""))
            for _, entries in reply or ()
            for entry_id, flat in entries
        ]
