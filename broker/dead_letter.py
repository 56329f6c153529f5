"""Sets a request aside: copies its entry with the reason and number of attempts, then deletes the entry.

The oldest copies are dropped when their number or size exceeds the contract's limits.
"""

from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, stream_of
from orcastream.broker.errors import require
from orcastream.broker.fold import Fold
from orcastream.broker.scripts import BURY, Arg, ScriptCall
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import GROUP, Keys
from orcastream.schemas.limits import MAX_DEAD_LETTER_BYTES, MAX_DEAD_LETTERS, MAX_PAYLOAD_BYTES

MAX_MESSAGE_LENGTH = 1000


def is_hopeless(deliveries: int, fold: Fold, max_deliveries: int) -> bool:
    """Whether a request just attached to is a dead letter: delivered too often, and the log shows no progress since.

    `deliveries` counts this one; hand-overs do not count.
    """
    return deliveries > max_deliveries and fold.epochs_without_progress >= max_deliveries


def bury_call(
    keys: Keys, ref: EntryRef, reason: ErrorCode, message: str, *, waiting: bool = False, request_id: str = ""
) -> ScriptCall:
    """Return the call of bury.lua."""
    bounds = (MAX_DEAD_LETTERS, MAX_DEAD_LETTER_BYTES, MAX_PAYLOAD_BYTES)
    what: list[Arg] = [GROUP, ref.entry_id, str(ref), str(reason), message[:MAX_MESSAGE_LENGTH]]
    args: list[Arg] = [*what, int(waiting), *bounds, request_id]
    lane = keys.in_lane(ref.lane)
    return BURY.call([stream_of(keys, ref), lane.dead, lane.work], args)


async def bury(
    link: Connection, keys: Keys, ref: EntryRef, *, reason: ErrorCode, message: str, waiting: bool = False
) -> bool:
    """Acknowledge, copy to the dead letters and delete, in one script; False if another process was first.

    Only for pending entries; with `waiting` also for one that was never delivered. Write the terminal event first,
    wherever a reply log can be named and written. Raises LinkLost, Unwritable.
    """
    replies = await link.call_many([bury_call(keys, ref, reason, message, waiting=waiting)])
    require(replies)
    return bool(replies[0])
