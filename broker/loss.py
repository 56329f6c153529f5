"""Requests that Redis lost: the queue entry is gone and the log, read after that, has no terminal."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from redis.exceptions import ResponseError

from orcastream.broker.attach import MAX_EPOCH
from orcastream.broker.connection import Connection
from orcastream.broker.ending import Ender, OnEnd
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import Unusable, Unwritable
from orcastream.broker.fold import decode_entry, fold_log
from orcastream.broker.log_pages import newest_entry, read_log
from orcastream.broker.queue import RequestQueue
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import EventId, Terminal
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest


class Verdict(StrEnum):
    """The result of a loss check."""

    PRESENT = "present"
    """The queue entry exists: a worker will process it."""
    ENDED = "ended"
    """The log has a terminal, possibly written by this check."""
    REQUEUED = "requeued"
    """It was lost, and this process, which accepted it, put it into the queue again."""
    SUSPECT = "suspect"
    """It looks lost; the process that accepted it gets some time to put it into the queue again."""
    UNKNOWN = "unknown"
    """Redis does not know the id, or only how the request ended: its reply log has expired."""


@dataclass(slots=True)
class Watch:
    """A request whose reply this process waits for, on behalf of `tenant`.

    `request` is set only if this process accepted it: then it can be put into the queue again under its id. `ref` is
    its queue entry if known; checks keep it up to date.
    """

    request_id: str
    tenant: str
    ref: EntryRef | None = None
    request: GenerationRequest | None = None
    suspect_since: float | None = None
    """Loop time at which a check first found it lost."""


class LossCheck:
    """Checks watched requests; `who` is the worker name in the started events it writes.

    The process that accepted a lost request gets `grace_s` to put it into the queue again before another one ends it.
    `unread`: nobody waits for the answers, so a request that `seen` reports as ended and whose log is gone has expired
    and is not lost.
    """

    def __init__(
        self,
        keys: Keys,
        who: str,
        *,
        retention_ms: int,
        grace_s: float = 5.0,
        unread: bool = False,
        on_end: OnEnd | None = None,
    ) -> None:
        self._keys = keys
        self._grace_s = grace_s
        self._unread = unread
        self._retention_ms = retention_ms
        self._ender = Ender(keys, who, retention_ms=retention_ms, on_end=on_end)

    async def check(self, link: Connection, watch: Watch) -> Verdict:
        """Determine the state of the request and repair it. Raises LinkLost, ResponseError, Unwritable.

        Raises Unusable if its log can never be written: putting it into the queue again would be futile.
        """
        queue = RequestQueue(link, self._keys)
        mark = await queue.find(watch.request_id)
        remembered = None if mark is None else mark.ref
        for ref in (remembered, watch.ref):
            if ref is not None and await queue.exists(ref, watch.request_id):
                watch.ref, watch.suspect_since = ref, None
                return Verdict.PRESENT
        log_key = self._keys.reply(watch.request_id)
        if await _ends_with_terminal(link, log_key):  # the usual case, of a log that may be long
            return Verdict.ENDED
        entries = await read_log(link, log_key)
        fold = fold_log(entries)
        if fold.terminal is not None:
            return Verdict.ENDED
        if fold.started is not None and fold.started.model != self._keys.model:
            raise Unusable(ResponseError(f"{watch.request_id}: the id belongs to a request for another model"))
        if entries and EventId.parse(entries[-1][0]).epoch >= MAX_EPOCH:
            raise Unusable(ResponseError(f"{watch.request_id}: no epoch is left in its reply log"))
        has_expired = not entries and mark is not None and mark.outcome is not None
        if has_expired and (self._unread or watch.request is None):
            return Verdict.UNKNOWN
        if watch.request is not None:
            return await self._requeue(link, queue, watch, watch.request, remembered)
        if not entries and remembered is None and watch.ref is None:
            return Verdict.UNKNOWN
        now = asyncio.get_running_loop().time()
        watch.suspect_since = now if watch.suspect_since is None else watch.suspect_since
        if now - watch.suspect_since < self._grace_s:
            return Verdict.SUSPECT
        message = "its queue entry is gone and nobody finished it"
        return await self._end(link, watch, remembered or watch.ref, ErrorCode.LOST, message)

    async def _requeue(
        self,
        link: Connection,
        queue: RequestQueue,
        watch: Watch,
        request: GenerationRequest,
        remembered: EntryRef | None,
    ) -> Verdict:
        gone = remembered or watch.ref
        now_ms = await link.server_time_ms()
        if self._unread and now_ms >= request.deadline_ms + self._retention_ms:
            return Verdict.UNKNOWN  # everything about a request that has ended may have expired
        if now_ms >= request.deadline_ms:
            return await self._end(link, watch, gone, ErrorCode.EXPIRED, "the deadline passed after it was lost")
        try:
            again = await queue.enqueue(request, terms=None, retention_ms=self._retention_ms, replaces=gone)
        except ResponseError as error:
            raise Unwritable(error) from None
        watch.ref = again.entry
        return Verdict.PRESENT if again.duplicate else Verdict.REQUEUED

    async def _end(
        self, link: Connection, watch: Watch, ref: EntryRef | None, code: ErrorCode, message: str
    ) -> Verdict:
        terminal = await self._ender.end(
            link, watch.request_id, ref=ref, code=code, message=message, request=watch.request, tenant=watch.tenant
        )
        return Verdict.PRESENT if terminal is None else Verdict.ENDED


async def _ends_with_terminal(link: Connection, log_key: str) -> bool:
    newest = await newest_entry(link, log_key)
    decoded = None if newest is None else decode_entry(newest)
    return decoded is not None and isinstance(decoded[1], Terminal)
