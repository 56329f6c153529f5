"""The waiting and running requests of one model, entry by entry, a few at a time and without their prompts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, after
from orcastream.broker.lease import was_handed_over
from orcastream.broker.queue import RequestQueue
from orcastream.broker.rows import PIECE, number, text
from orcastream.broker.scripts import LOOK
from orcastream.schemas.events import EventId
from orcastream.schemas.keys import CLASSES, GROUP, Keys


@dataclass(frozen=True, slots=True)
class Queued:
    """One entry of a request stream. `worker` holds it and renewed its lease `idle_ms` ago; None while it waits.

    `epoch` is the newest one of its reply log; None if there is no log yet. `request_id` is as found.
    """

    ref: EntryRef
    request_id: str
    deadline_ms: int | None
    payload_bytes: int
    worker: str | None
    idle_ms: int
    deliveries: int
    epoch: int | None = None

    @property
    def arrived_ms(self) -> int:
        """When it was added to the queue, by the server's clock; Unix time."""
        return self.ref.order[0]

    @classmethod
    def from_row(cls, priority_class: str, row: Sequence[bytes | int], lane: int = 0) -> "Queued":
        """Build from one row of look.lua."""
        entry_id, request_id, deadline, payload_bytes, consumer, idle_ms, deliveries = row
        worker = text(consumer) if consumer and not was_handed_over(int(idle_ms)) else None
        return cls(
            EntryRef(priority_class, text(entry_id), lane),
            text(request_id),
            number(text(deadline)),
            int(payload_bytes),
            worker,
            0 if worker is None else int(idle_ms),
            int(deliveries),
        )


async def queued_requests(link: Connection, keys: Keys, classes: Sequence[str] = CLASSES) -> AsyncIterator[Queued]:
    """Yield all waiting and running requests, class by class and lane by lane, the oldest first.

    Raises LinkLost, ResponseError.
    """
    for name, lane in product(classes, keys.each_lane):
        begin = "-"
        while page := await _page(link, lane, name, begin, PIECE):
            for one in await _with_epochs(link, keys, page):
                yield one
            if (begin := after(page[-1].ref.entry_id)) == "-":
                break


async def find_queued(link: Connection, keys: Keys, request_id: str) -> Queued | None:
    """Return the entry of this request; None if it has ended or never existed. Raises LinkLost, ResponseError.

    An unclaimed entry that its producer wrote by plain XADD is found by scanning all waiting entries.
    """
    mark = await RequestQueue(link, keys).find(request_id)
    if mark is not None:
        ref = mark.ref
        page = await _page(link, keys.in_lane(ref.lane), ref.priority_class, ref.entry_id, 1)
        found = [one for one in page if one.ref == ref]
        return (await _with_epochs(link, keys, found))[0] if found else None
    async for one in queued_requests(link, keys):
        if one.request_id == request_id:
            return one
    return None


async def _page(link: Connection, keys: Keys, name: str, begin: str, count: int) -> list[Queued]:
    rows = await link.run(LOOK, [keys.requests(name)], [GROUP, begin, count])
    return [Queued.from_row(name, row, keys.lane) for row in rows]


async def _with_epochs(link: Connection, keys: Keys, page: Sequence[Queued]) -> list[Queued]:
    logs = [("XREVRANGE", keys.reply(one.request_id), "+", "-", "COUNT", 1) for one in page]
    replies = await link.call_many(logs)
    return [
        replace(one, epoch=EventId.parse(newest[0][0]).epoch)
        if newest and not isinstance(newest, ResponseError)
        else one
        for one, newest in zip(page, replies, strict=True)
    ]
