"""Requests set aside: one stream per model, a copy of the entry with the reason and the number of attempts."""

from dataclasses import dataclass

from broker.entry import EntryRef
from broker.errors import require
from broker.fold import Fold
from broker.link import Link
from broker.resp import fields_of
from broker.scripts import BURY, Arg, ScriptCall
from schemas.errors import ErrorCode
from schemas.keys import GROUP, Keys

MAX_MESSAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter: its own stream id, the entry it was, why and after how many attempts, and its fields."""

    letter_id: str
    entry: str
    reason: str
    message: str
    attempts: int
    fields: dict[bytes, bytes]


def is_hopeless(deliveries: int, fold: Fold, max_deliveries: int) -> bool:
    """Whether a request just attached to is a dead letter: delivered too often, and the log shows no new token since.

    `deliveries` counts this one; hand-overs do not count.
    """
    return deliveries > max_deliveries and fold.epochs_without_progress >= max_deliveries


def bury_call(keys: Keys, ref: EntryRef, reason: ErrorCode, message: str, *, waiting: bool = False) -> ScriptCall:
    """The call of bury.lua."""
    args: list[Arg] = [GROUP, ref.entry_id, str(ref), str(reason), message[:MAX_MESSAGE_LENGTH], int(waiting)]
    return BURY.call([keys.requests(ref.priority_class), keys.dead], args)


async def bury(
    link: Link, keys: Keys, ref: EntryRef, *, reason: ErrorCode, message: str, waiting: bool = False
) -> bool:
    """Acknowledge, copy to the dead letters and delete, in one script; False when somebody else was first.

    Only for entries that are pending; with `waiting` also for one that no worker was given yet. The terminal event
    comes before it, wherever a reply log can be named and written. Raises LinkLost, Unwritable.
    """
    replies = await link.call_many([bury_call(keys, ref, reason, message, waiting=waiting)])
    require(replies)
    return bool(replies[0])


async def dead_letters(link: Link, keys: Keys, *, count: int = 100, before: str = "+") -> list[DeadLetter]:
    """The newest dead letters first; `before` is the `letter_id` behind which to go on."""
    end = before if before == "+" else f"({before}"
    letters = []
    for letter_id, flat in await link.call("XREVRANGE", keys.dead, end, "-", "COUNT", count):
        own, fields = flat[:8], flat[8:]
        letters.append(
            DeadLetter(
                letter_id.decode(),
                own[1].decode(),
                own[3].decode(),
                own[5].decode(),
                int(own[7]),
                fields_of(fields),
            )
        )
    return letters


async def discard(link: Link, keys: Keys, letter_id: str) -> bool:
    """Delete one dead letter; False when there is none of that id."""
    return bool(await link.call("XDEL", keys.dead, letter_id))
