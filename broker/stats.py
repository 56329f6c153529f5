"""What engines do, shown to whoever watches: a lease that says that somebody does, and a capped stream."""

from typing import Final

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import TELL_STATS
from orcastream.schemas.keys import Keys

STATS_LENGTH: Final = 1000
"""About how many entries are kept: a minute of four workers."""
STATS_KEPT_MS: Final = 60_000
_AT_ONCE: Final = 256


class StatsStream:
    """Nothing is written, nor asked for, unless somebody watches. Calls raise LinkLost, and what Redis refuses."""

    def __init__(self, link: Connection, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def watch(self, *, for_ms: int) -> None:
        """Have the model's workers tell for `for_ms` from now on; they are woken unless somebody watched already."""
        before = await self._link.call("SET", self._keys.watched, "1", "PX", for_ms, "GET")
        if before is None:
            require(await self._link.call_many([wake_up(self._keys, Control("watch", "*"))]))

    async def is_watched(self) -> bool:
        """Whether somebody watches now."""
        return bool(await self._link.call("EXISTS", self._keys.watched))

    async def tell(self, payload: bytes) -> bool:
        """Show `payload`; False, and nothing is written, where nobody watches any more."""
        names = [self._keys.watched, self._keys.stats]
        return bool(await self._link.run(TELL_STATS, names, [STATS_LENGTH, STATS_KEPT_MS, payload]))

    async def read(self, behind: str) -> list[tuple[str, bytes]]:
        """What was told after the entry id `behind`: ids and payloads, the oldest first. Does not wait."""
        reply = await self._link.call("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._keys.stats, behind)
        return [
            (entry_id.decode(), fields_of(flat).get(b"payload", b""))
            for _, entries in reply or ()
            for entry_id, flat in entries
        ]
