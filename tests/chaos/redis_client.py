"""A producer that speaks Redis: posts an entry, reads its reply log by positions, as docs/producers.md says."""

import asyncio
import time

import msgpack

from tests.chaos import wire
from tests.chaos.record import AWAY, Seen, connect
from tests.chaos.wire import LogEntry

_RETRY_S = 0.1
_POLL_S = 0.05


class RedisClient:
    """One for all requests, through the proxy: what befalls Redis befalls it."""

    def __init__(self, port: int) -> None:
        self._redis = connect(port)

    async def post(self, seen: Seen, priority_class: str, timeout_s: float, *, times: int = 1) -> None:
        """Write the entry until that is acknowledged, so many times; of one id the first counts."""
        deadline_ms = int((time.time() + timeout_s) * 1000)
        seen.posted_at = time.monotonic()
        until = seen.posted_at + timeout_s
        fields = wire.entry(seen.id, seen.payload, deadline_ms)
        while times and time.monotonic() < until:
            try:
                await self._redis.xadd(wire.requests_key(priority_class), fields)
                seen.accept()
                times -= 1
            except AWAY:
                await asyncio.sleep(_RETRY_S)

    async def post_raw(self, seen: Seen, fields: dict[str, str | bytes]) -> None:
        """Write an entry that may break the contract."""
        while not seen.accepted:
            try:
                await self._redis.xadd(wire.requests_key("normal"), fields)
                seen.accept()
            except AWAY:
                await asyncio.sleep(_RETRY_S)

    async def cancel(self, request_id: str, until: float) -> bool:
        """Write the key, then the wake-up; whether both were acknowledged."""
        while time.monotonic() < until:
            try:
                await self._redis.set(wire.cancel_key(request_id), "1", ex=3600)
                await self._redis.xadd(wire.CONTROL_KEY, {"type": "cancel", "target": request_id}, maxlen=10_000)
                return True
            except AWAY:
                await asyncio.sleep(_RETRY_S)
        return False

    async def follow(self, seen: Seen, *, until: float, num_tokens: int | None = None) -> None:
        """Fold the reply log until it ends, or until `num_tokens` tokens are there."""
        cursor = b"0-0"
        while seen.ended is None and time.monotonic() < until:
            try:
                answer = await self._redis.xread({wire.reply_key(seen.id): cursor}, count=100)
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
                seen.problems.append(("changed", f"position {position}: {overlap} became {tokens[: len(overlap)]}"))
            else:
                known.extend(tokens[len(overlap) :])
        if one.is_terminal:
            seen.end(one.outcome)


def unreadable_entry(request_id: str, deadline_ms: int) -> dict[str, str | bytes]:
    """An entry that breaks the contract: no prompt."""
    return {"id": request_id, "v": "1", "deadline": str(deadline_ms), "payload": msgpack.packb({"prompt": []})}
