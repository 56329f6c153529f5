"""Requests that nobody was given yet, and which of them goes first."""

from redis.exceptions import ResponseError

from broker.claimed import Claimed
from broker.entry import EntryRef
from broker.link import Link
from broker.queue import ensure_if_gone
from broker.resp import fields_of
from broker.scripts import CLAIM, Command
from schemas.keys import CLASSES, GROUP, Keys

CLASS_AGING_MS = 10_000
"""Waiting time by which an entry rises to the class above it, unless set otherwise."""


class Arrivals:
    """Claims new entries in the order of their arrival, each class put off by `class_aging_ms` behind the one above.

    So an entry goes before those of the class above that arrived so much later, and none waits for ever, whatever
    comes above it; 0 makes one queue of all classes. The precedence of an entry never changes, since the server's
    clock is its id. Raises LinkLost and ResponseError.
    """

    def __init__(self, link: Link, keys: Keys, worker: str, class_aging_ms: int) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._class_aging_ms = class_aging_ms

    async def claim(self, count: int) -> list[Claimed]:
        """At most `count` entries, the first ones of all classes; one step of the server, whatever rivals do."""
        streams = [self._keys.requests(name) for name in CLASSES]
        try:
            reply = await self._link.run(CLAIM, streams, [GROUP, self._worker, count, self._class_aging_ms])
        except ResponseError as error:
            await ensure_if_gone(self._link, self._keys, error)
            return []
        return [
            Claimed(EntryRef(CLASSES[number - 1], entry_id.decode()), fields_of(flat), 1)
            for number, entry_id, flat in reply
        ]

    async def wait(self, blocking_link: Link, timeout_ms: int) -> list[Claimed]:
        """Block until something arrives: at most one entry of each class."""
        streams = {self._keys.requests(name).encode(): name for name in CLASSES}
        options: Command = ("GROUP", GROUP, self._worker, "COUNT", 1, "BLOCK", timeout_ms)
        try:
            reply = await blocking_link.call("XREADGROUP", *options, "STREAMS", *streams, *(">" for _ in streams))
        except ResponseError as error:
            await ensure_if_gone(self._link, self._keys, error)
            return []
        claimed = [
            Claimed(EntryRef(streams[key], entry_id.decode()), fields_of(flat), 1)
            for key, entries in reply or ()
            for entry_id, flat in entries
            if flat is not None
        ]
        return sorted(claimed, key=self._precedence)

    def _precedence(self, one: Claimed) -> tuple[int, int]:
        """As claim.lua has it; of equals the more urgent class goes first."""
        arrived_ms, _, rank = one.ref.order
        return arrived_ms + rank * self._class_aging_ms, rank
