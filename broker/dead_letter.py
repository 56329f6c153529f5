"""Setting a request aside: a copy of its entry, with the reason and the number of attempts, and the entry deleted.

Of the copies, the oldest go where there are more, or larger ones, than the contract's limits allow.
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
    """Whether a request just attached to is a dead letter: delivered too often, and the log shows no new token since.

    `deliveries` counts this one; hand-overs do not count.
    """
    return deliveries > max_deliveries and fold.epochs_without_progress >= max_deliveries


def bury_call(keys: Keys, ref: EntryRef, reason: ErrorCode, message: str, *, waiting: bool = False) -> ScriptCall:
    """The call of bury.lua."""
    bounds = (MAX_DEAD_LETTERS, MAX_DEAD_LETTER_BYTES, MAX_PAYLOAD_BYTES)
    args: list[Arg] = [GROUP, ref.entry_id, str(ref), str(reason), message[:MAX_MESSAGE_LENGTH], int(waiting), *bounds]
    lane = keys.in_lane(ref.lane)
    return BURY.call([stream_of(keys, ref), lane.dead, lane.work], args)


async def bury(
    link: Connection, keys: Keys, ref: EntryRef, *, reason: ErrorCode, message: str, waiting: bool = False
) -> bool:
    """Acknowledge, copy to the dead letters and delete, in one script; False when somebody else was first.

    Only for entries that are pending; with `waiting` also for one that no worker was given yet. The terminal event
    comes before it, wherever a reply log can be named and written. Raises LinkLost, Unwritable.
    """
    replies = await link.call_many([bury_call(keys, ref, reason, message, waiting=waiting)])
    require(replies)
    return bool(replies[0])
