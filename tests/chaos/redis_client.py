"""A producer that speaks Redis: posts an entry, reads its reply log by positions, as docs/producers.md says."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgpack

from tests.chaos import wire
from tests.chaos.record import AWAY, Seen
from tests.chaos.wire import LogEntry, Queue

_RETRY_S = 0.1
_POLL_S = 0.05
_LOOK_S = 3.0
"""While nothing comes: how often a producer looks whether Redis has lost its request."""


@dataclass
class _Posted:
    """A written request, and its entry."""

    priority_class: str
    entry_id: bytes
    fields: dict[str, str | bytes]


class RedisClient:
    """The client for all requests: every fault of Redis affects `redis`."""

    def __init__(self, redis: Any, queue: Queue) -> None:
        self._redis = redis
        self._queue = queue
        self._posted: dict[str, _Posted] = {}

    async def post(self, seen: Seen, priority_class: str, timeout_s: float, *, times: int = 1) -> None:
        """Write the entry until it is acknowledged, the given number of times; of one id the first counts. Stops trying
        without an acknowledgment in time.
        """
        deadline_ms = int((time.time() + timeout_s) * 1000)
        seen.posted_at = time.monotonic()
        until = seen.posted_at + timeout_s
        fields = wire.entry(seen.id, seen.payload, deadline_ms)
        while times and time.monotonic() < until:
            try:
                entry_id = await self._redis.xadd(self._queue.requests(priority_class, seen.id), fields)
                self._posted.setdefault(seen.id, _Posted(priority_class, entry_id, fields))
                seen.accept()
                times -= 1
            except AWAY:
                await asyncio.sleep(_RETRY_S)
        if not seen.accepted:
            seen.end("gave up")

    async def post_raw(self, seen: Seen, fields: dict[str, str | bytes]) -> None:
        """Write an entry that may break the contract."""
        seen.posted_at = time.monotonic()
        while not seen.accepted:
            try:
                entry_id = await self._redis.xadd(self._queue.requests("normal", seen.id), fields)
                self._posted[seen.id] = _Posted("normal", entry_id, fields)
                seen.accept()
            except AWAY:
                await asyncio.sleep(_RETRY_S)

    async def cancel(self, request_id: str, until: float) -> bool:
        """Write the key, then the wake-up; return whether both were acknowledged."""
        while time.monotonic() < until:
            try:
                await self._redis.set(self._queue.cancel(request_id), "1", ex=3600)
                await self._redis.xadd(wire.CONTROL_KEY, {"type": "cancel", "target": request_id}, maxlen=10_000)
                return True
            except AWAY:
                await asyncio.sleep(_RETRY_S)
        return False

    async def follow(self, seen: Seen, *, until: float, num_tokens: int | None = None) -> None:
        """Fold the reply log until it ends, or until it has `num_tokens` tokens."""
        cursor, look_at, missing = b"0-0", time.monotonic() + _LOOK_S, False
        while seen.ended is None and time.monotonic() < until:
            try:
                answer = await self._redis.xread({wire.reply_key(seen.id): cursor}, count=100)
                if answer:
                    look_at, missing = time.monotonic() + _LOOK_S, False
                elif time.monotonic() > look_at and seen.id in self._posted:
                    look_at, missing = time.monotonic() + _LOOK_S, await self._look(seen, again=missing)
            except AWAY:
                cursor = b"0-0"
                await asyncio.sleep(_RETRY_S)
                continue
            for entry_id, fields in answer[0][1] if answer else ():
                cursor = entry_id
                self._fold(seen, LogEntry.read(entry_id, fields))
                if seen.ended is not None:
                    return
            if num_tokens is not None and sum(map(len, seen.tokens.values())) >= num_tokens:
                return
            await asyncio.sleep(_POLL_S)
        if seen.ended is None:
            seen.end("gave up")

    async def _look(self, seen: Seen, *, again: bool) -> bool:
        """Check whether Redis has lost the request; if the previous look also found it lost, post it `again`."""
        request_id, posted = seen.id, self._posted[seen.id]
        stream = self._queue.requests(posted.priority_class, request_id)
        mark = await self._redis.get(self._queue.seen(request_id))
        named = mark.split(b" ")[:2] if mark is not None else [posted.priority_class.encode(), posted.entry_id]
        for key, entry_id in (
            (stream, posted.entry_id),
            (self._queue.requests(named[0].decode(), request_id), named[1]),
        ):
            if await self._redis.xrange(key, entry_id, entry_id):
                return False
        newest = await self._redis.xrevrange(wire.reply_key(request_id), count=1)
        if newest and LogEntry.read(*newest[0]).is_terminal:
            return False
        if again:
            seen.posted_again = True
            posted.entry_id = await self._redis.xadd(stream, posted.fields)
        return not again

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    def _fold(self, seen: Seen, one: LogEntry) -> None:
        for run in one.event.get("output", ()):
            known = seen.tokens.setdefault(run["choice"], [])
            position, tokens = run["position"], run["tokens"]
            overlap = known[position : position + len(tokens)]
            if position > len(known):
                seen.problems.append(("lost", f"position {position} after {len(known)} tokens of {run['choice']}"))
            elif overlap != tokens[: len(overlap)]:
                seen.end("reply_conflict")
                return
            else:
                known.extend(tokens[len(overlap) :])
        if one.is_terminal:
            seen.end(one.outcome)


def unreadable_entry(request_id: str, deadline_ms: int) -> dict[str, str | bytes]:
    """Return an entry that breaks the contract: it has no prompt."""
    return {"id": request_id, "v": "1", "deadline": str(deadline_ms), "payload": msgpack.packb({"prompt": []})}
