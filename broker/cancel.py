"""Cancelling: a key that records it, and a stream that wakes up workers to check the key."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import raise_if_moved, require
from orcastream.broker.resp import fields_of
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_DEADLINE_AHEAD_MS

CONTROL_LENGTH: Final = 10_000
"""About how many wake-ups the control stream keeps; a worker that misses one finds the key at the next renewal."""


@dataclass(frozen=True, slots=True)
class Control:
    """A wake-up for workers. `kind`: `cancel` (check `target`, a request id), `drain` (`target` is a worker),
    `waiting` (the worker `target` handed over requests), `watch` (somebody watches: publish statistics) or `policy`
    (schedule by the policy `target`, if that is allowed).
    """

    kind: str
    target: str


async def cancel(link: Connection, keys: Keys, request_id: str, *, expire_at_ms: int | None = None) -> None:
    """Cancel a request, durably: the key first, then the wake-up. Idempotent.

    The key lives until `expire_at_ms` (Unix ms, not before the request's deadline); None: as long as the request is
    remembered. The caller must then end a waiting request: `Ender.end_if_waiting`. Raises LinkLost, Unwritable.
    """
    key = keys.cancel(request_id)
    if expire_at_ms is None:
        remembered_ms = int(await link.call("PTTL", keys.seen(request_id)))
        lifetime = ("PX", remembered_ms if remembered_ms > 0 else MAX_DEADLINE_AHEAD_MS)
    else:
        lifetime = ("PXAT", expire_at_ms)
    require(await link.call_in_order([("SET", key, "1", *lifetime), wake_up(keys, Control("cancel", request_id))]))


async def cancelled(link: Connection, keys: Keys, request_ids: Sequence[str]) -> set[str]:
    """Return the requests that were cancelled. A worker asks after it has registered a request locally."""
    replies = await link.call_many([("EXISTS", keys.cancel(request_id)) for request_id in request_ids])
    require(replies)
    return {request_id for request_id, found in zip(request_ids, replies, strict=True) if found}


async def drain(link: Connection, keys: Keys, worker: str) -> None:
    """Ask one worker to stop claiming, finish or hand over, and exit."""
    require(await link.call_many([wake_up(keys, Control("drain", worker))]))


def wake_up(keys: Keys, control: Control) -> tuple[str | int, ...]:
    """Return the command that notifies every worker of the model."""
    return ("XADD", keys.control, "MAXLEN", "~", CONTROL_LENGTH, "*", "type", control.kind, "target", control.target)


class ControlReader:
    """Reads the control stream over its own link, from the call of `begin` on."""

    def __init__(self, link: Connection, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._last_id = b"0-0"

    async def begin(self, connection: Connection) -> None:
        """Note where the stream ends now. Read the cancel keys of running requests after this, not before.

        `connection` follows the stream where it has already moved to another node of a cluster, and its slot has not.
        """
        newest = await connection.call("XREVRANGE", self._keys.control, "+", "-", "COUNT", 1)
        if newest:
            self._last_id = newest[0][0]

    async def read(self, timeout_ms: int) -> list[Control]:
        """Return the next wake-ups; empty after `timeout_ms`. Raises LinkLost: the cancel keys show what was missed."""
        key, last_id = self._keys.control, self._last_id
        try:
            reply = await self._link.call("XREAD", "COUNT", 256, "BLOCK", timeout_ms, "STREAMS", key, last_id)
        except ResponseError as error:
            raise_if_moved(error)
            if not str(error).startswith("UNBLOCKED"):
                raise
            reply = None
        wake_ups = []
        for _, entries in reply or ():
            for entry_id, flat in entries:
                self._last_id = entry_id
                fields = fields_of(flat)
                kind, target = fields.get(b"type", b""), fields.get(b"target", b"")
                wake_ups.append(Control(kind.decode(errors="replace"), target.decode(errors="replace")))
        return wake_ups
