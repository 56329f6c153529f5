"""The cleanup once a log holds a terminal event: keep the log for its retention, acknowledge, delete or bury."""

from typing import Final

from orcastream.broker.connection import Connection
from orcastream.broker.dead_letter import bury_call
from orcastream.broker.entry import EntryRef, stream_of
from orcastream.broker.errors import require
from orcastream.broker.scripts import ACKNOWLEDGE, DUPLICATE, MARK_ENDED, Command, ScriptCall
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Terminal
from orcastream.schemas.keys import GROUP, Keys

BURIED: Final = frozenset({ErrorCode.DEAD_LETTER, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
"""Errors after which a copy of the request is kept among the dead letters."""

MARKS_OUTLIVE: Final = 2
"""A request that ended is remembered at least this many times as long as its reply log."""


async def finish(
    link: Connection,
    keys: Keys,
    *,
    request_id: str,
    tenant: str,
    ref: EntryRef | None,
    terminal: Terminal,
    retention_ms: int,
) -> None:
    """Finish the cleanup of a request whose log holds `terminal`. Idempotent: every finder of a terminal calls it.

    Sets the log's final lifetime, records the outcome and the tenant in the `seen` key, which outlives the log, then
    acknowledges and deletes the queue entry, or buries it if the request failed for good. Raises LinkLost, Unwritable;
    the next worker to take the entry over then repeats the cleanup.
    """
    outcome = str(terminal.error or "finished")
    commands: list[Command | ScriptCall] = [
        ("PEXPIRE", keys.reply(request_id), retention_ms),
        MARK_ENDED.call(
            [keys.seen(request_id)], ["" if ref is None else str(ref), outcome, tenant, MARKS_OUTLIVE * retention_ms]
        ),
    ]
    if ref is not None:
        if terminal.error in BURIED:
            commands.append(bury_call(keys, ref, terminal.error, terminal.message or "", request_id=request_id))
        else:
            commands.append(acknowledge_call(keys, ref, request_id))
    require(await link.call_many(commands))


async def drop_duplicate(link: Connection, keys: Keys, *, request_id: str, ref: EntryRef, stays: EntryRef) -> None:
    """Acknowledge and delete a second entry of one id; `seen` names the remaining one. Raises LinkLost, Unwritable."""
    key_list = [stream_of(keys, ref), keys.seen(request_id), keys.in_lane(ref.lane).work]
    require(await link.call_many([DUPLICATE.call(key_list, [GROUP, ref.entry_id, str(ref), str(stays)])]))


def acknowledge_call(keys: Keys, ref: EntryRef, request_id: str) -> ScriptCall:
    """Return the call of acknowledge.lua, which removes an entry from the group, its stream and the books at once."""
    key_list = [stream_of(keys, ref), keys.in_lane(ref.lane).work]
    return ACKNOWLEDGE.call(key_list, [GROUP, ref.entry_id, str(ref), request_id])
