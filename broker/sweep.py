"""Deadlines and lost entries: gateways and workers scan the request streams in small steps."""

from dataclasses import dataclass, field
from itertools import product
from random import shuffle

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.ending import Ender, OnEnd, OnSetAside
from orcastream.broker.entry import EntryRef, after
from orcastream.broker.errors import Unusable, Unwritable
from orcastream.broker.lease import HANDED_OVER_MS
from orcastream.broker.origin import read_request
from orcastream.broker.queue import RequestQueue
from orcastream.broker.scripts import RECOUNT, SWEEP, Arg
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import CLASSES, GROUP, Keys, check_id

REPAIRED = "repaired"
"""Consumer that holds entries that were delivered but belonged to nobody, until a worker takes them over."""
PIECE = 16
"""Entries per script call: the script holds their bodies, which may be large."""
MOST_OVERDUE = 1024
"""About how many entries of one class a step ends: the other classes wait meanwhile."""
_OLDEST = ""
"""Where to begin a scan of the entries that nobody has claimed."""
_MOST_MENDED = 5000
"""Most entries of a queue whose sums are added up anew: Redis serves nobody meanwhile, for some 30 ms."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a step: requests ended because their deadline passed, and lost entries made claimable again."""

    expired: tuple[EntryRef, ...] = ()
    repaired: int = 0


@dataclass(slots=True)
class _Step:
    """What one step has found so far; `refused`: the last error of Redis, for one class or request."""

    now_ms: int
    expired: list[EntryRef] = field(default_factory=list)
    repaired: int = 0
    refused: Unwritable | None = None


class Sweeper:
    """Scans all request streams, each with a cursor; one step reads `chunk` entries per class, and more while they are
    overdue: those next to them probably are, too. It begins with the oldest waiting ones, whose deadlines pass first
    unless clients set different ones.

    Bound to one link. Any number of sweepers may run in parallel.
    """

    def __init__(
        self,
        link: Connection,
        keys: Keys,
        who: str,
        *,
        retention_ms: int,
        margin_ms: int = 2000,
        chunk: int = 64,
        on_end: OnEnd | None = None,
        on_set_aside: OnSetAside | None = None,
    ) -> None:
        """`who` is the worker name in the started events it writes; owners get `margin_ms` after a deadline.

        `on_end` and `on_set_aside` are those of Ender.
        """
        self._link = link
        self._keys = keys
        self._ender = Ender(keys, who, retention_ms=retention_ms, on_end=on_end, on_set_aside=on_set_aside)
        self._margin_ms = margin_ms
        self._chunk = chunk
        self._cursors: dict[str, str] = {}

    async def step(self) -> Swept:
        """Scan the next chunk of every class. Call this about every second.

        Raises LinkLost; Unwritable, after scanning all of them, if Redis refused a command for one of them.
        """
        step = _Step(await self._link.server_time_ms())
        for keys, name in product(self._keys.each_lane, CLASSES):
            stream = keys.requests(name)
            try:
                await self._scan(step, keys, name, _OLDEST, PIECE)
                self._cursors[stream] = await self._scan(step, keys, name, self._cursors.get(stream, "-"), self._chunk)
            except Unwritable as error:
                step.refused = error
        for keys in self._keys.each_lane:
            await self._recount(keys)
        if step.refused is not None:
            raise step.refused
        return Swept(tuple(step.expired), step.repaired)

    async def _recount(self, keys: Keys) -> None:
        """Remove entries from the books that were deleted outside the protocol, and mend wrong sums."""
        key_list, cursor = [*map(keys.requests, CLASSES), keys.work], self._cursors.get(keys.work, "0")
        try:
            found, _ = await self._link.run(RECOUNT, key_list, [cursor, self._chunk, _MOST_MENDED])
        except ResponseError as error:
            raise Unwritable(error) from None
        self._cursors[keys.work] = found.decode()

    async def _scan(self, step: _Step, keys: Keys, name: str, start: str, enough: int) -> str:
        """Scan one class until `enough` entries were in pieces with nothing overdue; then end what is.

        Returns where to continue. Raises LinkLost, and Unwritable if Redis refuses the scan.
        """
        overdue: list[tuple[EntryRef, str]] = []
        while enough > 0 and len(overdue) < MOST_OVERDUE:
            size = min(PIECE, enough)
            args: list[Arg] = [GROUP, start, size, step.now_ms - self._margin_ms, REPAIRED, HANDED_OVER_MS]
            try:
                cursor, fixed, *rows = await self._link.run(SWEEP, [keys.requests(name)], args)
            except ResponseError as error:
                raise Unwritable(error) from None
            step.repaired += fixed
            overdue += [(EntryRef(name, row[0].decode(), keys.lane), row[1].decode(errors="replace")) for row in rows]
            start = after(cursor.decode()) if cursor else "-"
            if not cursor:
                break
            enough -= 0 if rows else size
        shuffle(overdue)  # other sweepers find the same ones
        for ref, request_id in overdue:
            try:
                if await self._expire(ref, request_id, step.now_ms):
                    step.expired.append(ref)
            except Unwritable as error:
                step.refused = error
        return start

    async def _expire(self, ref: EntryRef, request_id: str, now_ms: int) -> bool:
        try:
            check_id(request_id)
        except InvalidRequest:
            return False  # no reply log can be named: a worker buries the entry
        try:
            if not await RequestQueue(self._link, self._keys).exists(ref, request_id):
                return False  # another sweeper came first
        except ResponseError as error:
            raise Unwritable(error) from None
        request = await read_request(self._link, self._keys, ref, now_ms)
        code, message = ErrorCode.EXPIRED, "the deadline passed before the request finished"
        try:
            terminal = await self._ender.end(
                self._link, request_id, ref=ref, code=code, message=message, request=request
            )
        except Unusable as error:
            await self._ender.set_aside(self._link, ref, code, f"{message} ({error})")
            return False
        return terminal is not None
