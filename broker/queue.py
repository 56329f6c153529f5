"""The request queue of one model: four streams, one consumer group each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, Mark, stream_of
from orcastream.broker.errors import WRONG_TYPE, NotAdmitted, Refusal, error_code
from orcastream.broker.fold import fold_log
from orcastream.broker.lease import was_handed_over
from orcastream.broker.scripts import ENQUEUE, ENTRY_STATE, FORGET_LOG, Arg, ScriptCall
from orcastream.broker.terms import Terms
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import CLASSES, GROUP, Keys
from orcastream.schemas.request import GenerationRequest

GONE = ("NOGROUP", "UNBLOCKED")
"""Error codes for a stream or group that was deleted; the command did nothing."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The one queue entry of a request; `duplicate` if it was there before. `depth`: entries in the queue now.

    `outcome`, `tenant`: how it ended and its tenant, for a duplicate of a request that has ended; as in `Mark`.
    """

    entry: EntryRef
    duplicate: bool
    depth: int
    outcome: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class EntryState:
    """The state of a queue entry; `consumer` is None while it is not pending."""

    exists: bool
    consumer: str | None
    idle_ms: int
    deliveries: int

    @property
    def waits(self) -> bool:
        """Whether no worker holds it: it was never delivered, or was handed over since."""
        return self.exists and (self.consumer is None or was_handed_over(self.idle_ms))

    @classmethod
    def from_reply(cls, reply: Sequence[bytes | int]) -> "EntryState":
        """Build from the reply of entry_state.lua."""
        exists, consumer, idle_ms, deliveries = reply
        name = consumer.decode() if isinstance(consumer, bytes) and consumer else None
        return cls(bool(exists), name, int(idle_ms), int(deliveries))


async def entry_state(link: Connection, keys: Keys, entry: EntryRef, request_id: str) -> EntryState:
    """Return whether the entry of this request exists and which consumer holds it."""
    (reply,) = await link.call_many([entry_state_call(keys, entry, request_id)])
    if isinstance(reply, ResponseError):
        raise reply
    return EntryState.from_reply(reply)


def entry_state_call(keys: Keys, entry: EntryRef, request_id: str) -> ScriptCall:
    """Return the call of entry_state.lua."""
    return ENTRY_STATE.call([stream_of(keys, entry)], [GROUP, entry.entry_id, request_id])


async def ensure_groups(link: Connection, keys: Keys) -> None:
    """Create the streams of one lane and their consumer groups, at 0 so that nothing posted before is skipped.

    Idempotent.
    """
    streams = [keys.requests(name) for name in CLASSES]
    for reply in await link.call_many([("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM") for key in streams]):
        if isinstance(reply, ResponseError) and not str(reply).startswith("BUSYGROUP"):
            raise reply


async def ensure_if_gone(link: Connection, keys: Keys, error: ResponseError) -> None:
    """Recreate deleted streams and groups if `error` reports that; raise it otherwise."""
    if not str(error).startswith(GONE):
        raise error
    await ensure_groups(link, keys)


class RequestQueue:
    """The producers' side of the queue."""

    def __init__(self, link: Connection, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def ensure_groups(self) -> None:
        """Create missing streams and groups.

        A lane whose node is down gets its own at the first claim there. Raises ResponseError if all lanes fail.
        """
        refused: list[ResponseError] = []
        for keys in self._keys.each_lane:
            try:
                await ensure_groups(self._link, keys)
            except ResponseError as error:
                refused.append(error)
        if len(refused) == self._keys.queue_lanes:
            raise refused[0]

    async def enqueue(
        self,
        request: GenerationRequest,
        *,
        terms: Terms | None,
        retention_ms: int,
        replaces: EntryRef | None = None,
    ) -> Enqueued:
        """Put the request into its class's stream once: a repeated call returns the existing entry.

        `replaces` names a lost entry of this request: if it is gone and nobody else replaced it, the request is added
        again. `terms` apply to a new request, each lane taking its share (None: no terms; an accepted request is never
        refused again). Raises NotAdmitted, and ResponseError (out of memory ...), with nothing done; LinkLost if the
        outcome is unknown: then the call may be repeated on another link.
        """
        keys, payload = self._keys.in_lane(self._keys.lane_of(request.id)), request.payload
        fields: list[Arg] = [part for item in request.fields().items() for part in item]
        asked = {
            "id": request.id,
            "class": request.priority_class,
            "tenant": payload.tenant,
            "deadline": request.deadline_ms,
            "tokens": payload.declared_tokens,
            "length": payload.declared_length,
            "seen_until": request.deadline_ms + retention_ms,
            **({} if replaces is None else {"replaces": str(replaces)}),
            **({} if request.record is None else {"record": True}),
            **({} if terms is None else terms.shared(keys.queue_lanes).as_dict()),
        }
        key_list = [*map(keys.requests, CLASSES), keys.seen(request.id), keys.work, keys.throughput]
        key_list.append(keys.rate(payload.tenant))
        if request.record is not None:
            key_list.append(keys.response(request.id))
            fields.append(request.record)
        reply = await self._link.run(ENQUEUE, key_list, [json.dumps(asked), *fields])
        if not reply[0]:
            _, reason, *figures = reply
            raise NotAdmitted(Refusal(reason.decode()), *figures)
        ref, duplicate, depth = reply
        mark = Mark.find(ref, keys.lane) or Mark(EntryRef.parse(ref, keys.lane))
        return Enqueued(mark.ref, bool(duplicate), depth, mark.outcome, mark.tenant)

    async def depth(self) -> int:
        """Return the number of requests waiting and running."""
        return sum(await self.depths())

    async def is_empty(self) -> bool:
        """Whether there is no request; False if any lane cannot be queried."""
        streams = [keys.requests(name) for keys in self._keys.each_lane for name in CLASSES]
        replies = await self._link.call_many([("XLEN", stream) for stream in streams])
        return replies == [0] * len(streams)

    async def depths(self) -> list[int]:
        """Return the requests waiting and running, per class in the order of `orcastream.schemas.keys.CLASSES`."""
        lanes = self._keys.each_lane
        replies = await self._link.call_many([("XLEN", keys.requests(name)) for keys in lanes for name in CLASSES])
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return [sum(replies[rank :: len(CLASSES)]) for rank in range(len(CLASSES))]

    async def exists(self, entry: EntryRef, request_id: str) -> bool:
        """Whether the entry of this request is still in its stream."""
        return (await self.state(entry, request_id)).exists

    async def state(self, entry: EntryRef, request_id: str) -> EntryState:
        """Return whether the entry of this request exists and which consumer holds it.

        An entry with this id may be another request's: after a failover, of one that the new master accepted in the
        same millisecond.
        """
        return await entry_state(self._link, self._keys, entry, request_id)

    async def forget_lost(self, request_id: str) -> None:
        """Delete the reply log of a request that ended as lost, so that it can be computed again. Idempotent.

        Then `enqueue` it with `replaces`. A log that ended in another way, or that was begun again, stays.
        """
        await self._forget(request_id, lambda terminal: terminal.error is ErrorCode.LOST)

    async def forget_reply(self, request_id: str) -> None:
        """Delete the reply log of a request that has ended, and whose entry is gone. Idempotent."""
        await self._forget(request_id, lambda _: True)

    async def _forget(self, request_id: str, ended: Callable[[Terminal], bool]) -> None:
        newest = await self._link.call("XREVRANGE", self._keys.reply(request_id), "+", "-", "COUNT", 1)
        terminal = fold_log(newest).terminal
        if terminal is not None and ended(terminal):
            await self._link.run(FORGET_LOG, [self._keys.reply(request_id)], [newest[0][0]])

    async def find(self, request_id: str) -> Mark | None:
        """Return the entry that is this request, as long as it is remembered, and how it ended.

        An unreadable `seen` key counts as missing.
        """
        try:
            mark = await self._link.call("GET", self._keys.seen(request_id))
        except ResponseError as error:
            if error_code(error) != WRONG_TYPE:
                raise
            return None
        return None if mark is None else Mark.find(mark, self._keys.lane_of(request_id))
