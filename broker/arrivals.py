"""New requests of one lane: claims entries that were never delivered, in order of precedence."""

from redis.exceptions import ResponseError

from orcastream.broker.claimed import Claimed
from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import raise_if_moved
from orcastream.broker.link import Link
from orcastream.broker.queue import ensure_if_gone
from orcastream.broker.scripts import CLAIM
from orcastream.schemas.keys import CLASSES, GROUP, Keys, class_weights


class Arrivals:
    """Claims new entries of one lane by accumulating priority: the greatest age times weight of the class goes first.

    A class weighs `class_weight` times the next lower one, at least 1; with 1, all classes share one queue. So while
    more requests arrive than are served, waits grow in the ratio of the weights, however long they get; and an entry
    waits at most that ratio times as long as the longest wait of a higher class. (L. Kleinrock, A delay dependent queue
    discipline, Naval Research Logistics Quarterly 1964; D. Stanford, P. Taylor, I. Ziedins, Waiting time distributions
    in the accumulating priority queue, Queueing Systems 2014.) Ages follow from entry ids and the server's clock. Calls
    raise LinkLost and ResponseError.
    """

    def __init__(self, link: Connection, keys: Keys, worker: str, class_weight: float) -> None:
        self._link = link
        self.keys = keys
        self._worker = worker
        self._class_weight = class_weight
        self._weights = class_weights(class_weight)

    async def claim(self, count: int, *, least_age_ms: int = 0) -> list[Claimed]:
        """Claim at most `count` entries, the first of all classes; atomic on the server, whatever rivals do."""
        streams = [self.keys.requests(name) for name in CLASSES]
        arguments = (GROUP, self._worker, count, repr(self._class_weight), least_age_ms)
        try:
            reply = await self._link.run(CLAIM, streams, arguments)
        except ResponseError as error:
            await ensure_if_gone(self._link, self.keys, error)
            return []
        return [
            Claimed.of(EntryRef(CLASSES[number - 1], entry_id.decode(), self.keys.lane), flat, 1)
            for number, entry_id, flat in reply
        ]

    async def wait(self, blocking_link: Link, timeout_ms: int) -> list[Claimed]:
        """Block until something arrives; claim at most one entry of each class, in order of precedence."""
        streams = [self.keys.requests(name) for name in CLASSES]
        read = ("XREADGROUP", "GROUP", GROUP, self._worker, "COUNT", 1, "BLOCK", timeout_ms, "STREAMS")
        try:
            reply = await blocking_link.call(*read, *streams, *(">" for _ in streams))
        except ResponseError as error:
            raise_if_moved(error)
            await ensure_if_gone(self._link, self.keys, error)
            return []
        classes = {self.keys.requests(name).encode(): name for name in CLASSES}
        claimed = [
            Claimed.of(EntryRef(classes[key], entry_id.decode(), self.keys.lane), flat, 1)
            for key, entries in reply or ()
            for entry_id, flat in entries
            if flat is not None
        ]
        if len(claimed) > 1:
            now_ms = await self._link.server_time_ms()
            claimed.sort(key=lambda one: self._order(one.ref, now_ms))
        return claimed

    def _order(self, ref: EntryRef, now_ms: int) -> tuple[float, int]:
        """Sort key: the greatest precedence first, as in claim.lua; on a tie the more urgent class."""
        arrived_ms, _, rank = ref.order
        age_ms = max(now_ms - arrived_ms, 1)
        return -age_ms * self._weights[ref.priority_class], rank
