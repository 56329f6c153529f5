"""Takes requests from the queue: new ones, ones whose lease expired, and ones claimed in a reply that was lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.arrivals import Arrivals
from orcastream.broker.claimed import Claimed
from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, after, stream_of
from orcastream.broker.lane_waits import LaneWaits
from orcastream.broker.lease import LEAST_MARK_MS, Leases, ends_workers, is_suspect, was_handed_over
from orcastream.broker.link import Link
from orcastream.broker.queue import ensure_if_gone
from orcastream.broker.scripts import Command
from orcastream.broker.takeover_gate import TakeoverGate
from orcastream.schemas.keys import CLASS_WEIGHT, CLASSES, GROUP, Keys
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS

PAGES = 4
"""Pages of expired leases scanned per class and call; the next call continues from the cursor."""
SETTLE_S = 0.1
"""How long after a claim has returned the caller may not yet have registered its requests."""


class Claimer:
    """A worker's side of the queue. Every call claims at most `count` requests: claim only what can run soon.

    Bound to one link; create a new one after a reconnect. All calls raise LinkLost and ResponseError.
    """

    def __init__(
        self,
        link: Connection,
        keys: Keys,
        worker: str,
        *,
        lease_ms: int,
        retention_ms: int,
        max_deliveries: int,
        not_before: float = 0.0,
        class_weight: float = CLASS_WEIGHT,
    ) -> None:
        """`not_before` (loop time): no takeover before; on a reconnect, one lease from now.

        `class_weight`: see Arrivals.
        """
        self._link = link
        self._keys = keys
        self._worker = worker
        self._lease_ms = lease_ms
        self._retention_ms = retention_ms
        self._max_deliveries = max_deliveries
        self._not_before = not_before
        self._lanes = [Arrivals(link, one, worker, class_weight) for one in keys.each_lane]
        self._gates: dict[Link, TakeoverGate] = {}
        self._cursors: dict[tuple[str, int], str] = {}
        """By stream and minimum idle time: a scan for handed-over entries does not move the other cursor."""
        self._claims: dict[object, float] = {}
        self._turn = -1

    async def new(self, count: int, *, least_age_ms: int = 0) -> list[Claimed]:
        """Claim requests that were never delivered, the most urgent of each lane first; none waits forever.

        `least_age_ms`: leave those that arrived later than that long ago to other workers.
        """
        with self._claiming():
            claimed = await self._in_turn(count, partial(Arrivals.claim, least_age_ms=least_age_ms))
            self._remember(claimed)
        return claimed

    async def wait_for_work(self, waits: LaneWaits, timeout_ms: int, *, count: int = 4) -> list[Claimed]:
        """Block until a request arrives, on separate links; claim what arrived, at most `count`.

        `timeout_ms` must be well below the links' reply timeout. If several classes or lanes have requests at once,
        each yields one; requests beyond `count` are handed over at once.
        """
        with self._claiming():
            claimed = await waits.wait(self._lanes, timeout_ms)
            if len(claimed) > count:
                leases = Leases(self._link, self._keys, self._worker)
                await leases.hand_over([one.ref for one in claimed[count:]])
            self._remember(claimed[:count])
        return claimed[:count]

    async def expired(self, count: int) -> list[Claimed]:
        """Claim requests that were handed over or whose lease expired; no expired ones within one lease of a Redis
        start or my reconnect."""
        with self._claiming():
            claimed = await self._in_turn(count, self._expired_in)
            self._remember(claimed)
        return claimed

    async def _expired_in(self, lane: Arrivals, count: int) -> list[Claimed]:
        gate = await self._gate(lane.keys)
        min_idle_ms = self._lease_ms if await gate.is_open() else LEAST_MARK_MS
        claimed: list[Claimed] = []
        for name in CLASSES:
            if len(claimed) >= count:
                break
            claimed += await self._expired_of(lane.keys, name, count - len(claimed), min_idle_ms)
        return claimed

    async def _gate(self, keys: Keys) -> TakeoverGate:
        """Return the gate of a lane's server, which lanes may share."""
        link = await self._link.link_for(keys.requests(CLASSES[0]))
        if link not in self._gates:
            self._gates[link] = TakeoverGate(link, self._lease_ms, self._not_before)
        return self._gates[link]

    async def _in_turn(self, count: int, claim: Callable[[Arrivals, int], Awaitable[list[Claimed]]]) -> list[Claimed]:
        """Claim from one lane after the other, starting each time with the next lane.

        A lane whose node is down does not stop the others: its error is raised only if none of them yielded a request.
        """
        self._turn = (self._turn + 1) % len(self._lanes)
        claimed: list[Claimed] = []
        refused: ResponseError | None = None
        for lane in (*self._lanes[self._turn :], *self._lanes[: self._turn]):
            if len(claimed) >= count:
                break
            try:
                claimed += await claim(lane, count - len(claimed))
            except ResponseError as error:
                refused = error
        if refused is not None and not claimed:
            raise refused
        return claimed

    async def unknown(self, running: Container[EntryRef]) -> list[Claimed]:
        """Claim requests pending under my name that are not `running`: the reply to a claim was lost.

        Add the results of other calls to `running` before awaiting anything else; entries that a call in flight may
        just have claimed are skipped. The delivery count stays as it is. Nobody knows whether such a request was a
        takeover, or of a suspect: its deliveries decide.
        """
        found: list[tuple[EntryRef, int]] = []
        for lane, name in product(self._keys.each_lane, CLASSES):
            found += [item async for item in self._pending_of(lane, name) if item[0] not in running]
        if not found:
            return []
        bodies = await self._link.call_many([self._body(ref) for ref, _ in found])
        claimed, gone = [], []
        for (ref, deliveries), entries in zip(found, bodies, strict=True):
            if isinstance(entries, ResponseError):
                raise entries
            if entries:
                suspect = ends_workers(deliveries, self._max_deliveries)
                claimed.append(Claimed.of(ref, entries[0][1], deliveries, suspect=suspect, taken_over=True))
            else:
                gone.append(ref)
        await self._drop(gone)
        return claimed

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """Record since when claims have been in flight; a claim whose reply is lost stops counting."""
        token, loop = object(), asyncio.get_running_loop()
        self._claims[token] = loop.time()
        try:
            yield
        except BaseException:
            del self._claims[token]
            raise
        loop.call_later(SETTLE_S, self._claims.pop, token, None)

    async def _expired_of(self, keys: Keys, name: str, count: int, min_idle_ms: int) -> list[Claimed]:
        stream = keys.requests(name)
        claimed: list[Claimed] = []
        for _ in range(PAGES):
            start = self._cursors.get((stream, min_idle_ms), "-")
            page = await self._pending_page(stream, start, count - len(claimed), ("IDLE", min_idle_ms))
            self._cursors[stream, min_idle_ms] = after(page[-1][0].decode()) if page else "-"
            mine = self._worker.encode()
            claimed += await self._take_over(
                [
                    (EntryRef(name, entry_id.decode(), keys.lane), idle_ms, deliveries)
                    for entry_id, consumer, idle_ms, deliveries in page
                    if consumer != mine or was_handed_over(idle_ms)
                ],
                min_idle_ms,
            )
            if len(claimed) >= count or (not page and start == "-"):
                break
        return claimed

    async def _take_over(self, found: Sequence[tuple[EntryRef, int, int]], min_idle_ms: int) -> list[Claimed]:
        """Claim the entries in `found` (with idle time and deliveries), atomically with respect to rivals.

        A suspect whose lease expired may not have begun there, so its attempt counts when it begins alone.
        """
        commands: list[Command] = []
        suspects = [is_suspect(idle_ms, deliveries, self._max_deliveries) for _, idle_ms, deliveries in found]
        counts = [
            deliveries + (was_handed_over(idle_ms) or not suspect)
            for (_, idle_ms, deliveries), suspect in zip(found, suspects, strict=True)
        ]
        for (ref, _, _), count in zip(found, counts, strict=True):
            stream = stream_of(self._keys, ref)
            claim = ("XCLAIM", stream, GROUP, self._worker, min_idle_ms, ref.entry_id, "RETRYCOUNT", count)
            commands.append(claim)
        claimed, gone = [], []
        replies = await self._link.call_many(commands)
        for (ref, _, _), suspect, count, taken in zip(found, suspects, counts, replies, strict=True):
            if isinstance(taken, ResponseError):
                raise taken
            if taken and taken[0] is not None:
                claimed.append(Claimed.of(ref, taken[0][1], count, suspect=suspect, taken_over=True))
            elif taken:
                gone.append(ref)  # Redis 6.2 keeps deleted entries pending; later servers drop them here.
        await self._drop(gone)
        return claimed

    async def _pending_page(
        self, stream: str, start: str, count: int, idle: tuple[str | int, ...] = (), consumer: tuple[str, ...] = ()
    ) -> list[Any]:
        try:
            page: list[Any] = await self._link.call(
                "XPENDING", stream, GROUP, *idle, start, "+", max(count, 1), *consumer
            )
        except ResponseError as error:
            await ensure_if_gone(self._link, self._keys, error)
            return []
        return page

    async def _pending_of(self, keys: Keys, name: str) -> Any:
        start = "-"
        while page := await self._pending_page(keys.requests(name), start, 256, consumer=(self._worker,)):
            in_flight_ms = self._longest_claim_ms()
            for entry_id, _, idle_ms, deliveries in page:
                if idle_ms > in_flight_ms and not was_handed_over(idle_ms):
                    yield EntryRef(name, entry_id.decode(), keys.lane), deliveries
            if (start := after(page[-1][0].decode())) == "-":
                return

    def _longest_claim_ms(self) -> float:
        """Return the idle time below which entries may belong to a claim in flight; -1 if there is none."""
        if not self._claims:
            return -1.0
        return (asyncio.get_running_loop().time() - min(self._claims.values())) * 1000 + 1

    def _body(self, ref: EntryRef) -> Command:
        return ("XRANGE", stream_of(self._keys, ref), ref.entry_id, ref.entry_id)

    async def _drop(self, gone: Sequence[EntryRef]) -> None:
        """Acknowledge entries whose bodies were deleted."""
        await self._link.call_many([("XACK", stream_of(self._keys, ref), GROUP, ref.entry_id) for ref in gone])

    def _remember(self, claimed: Sequence[Claimed]) -> None:
        """Set `seen` for requests that were added without the enqueue script; a failure does no harm.

        A request in the wrong lane will be refused, so it is skipped.
        """
        commands: list[Command] = []
        for one in claimed:
            deadline = one.fields.get(b"deadline", b"")
            name = one.request_id
            if name and self._keys.lane_of(name) == one.ref.lane and deadline.isdigit() and len(deadline) <= 15:
                # A deadline beyond the contract's limit is refused, so it is not remembered for years.
                # The producer may have chosen the entry id.
                latest_ms = max(one.ref.order[0], int(time.time() * 1000)) + MAX_DEADLINE_AHEAD_MS
                expire_at_ms = min(int(deadline), latest_ms) + self._retention_ms
                key = self._keys.seen(name)
                commands.append(("SET", key, str(one.ref), "NX", "PXAT", max(expire_at_ms, 1)))
        if commands:  # nobody waits for the replies: the next commands on this link follow these
            self._link.post_along(commands)
