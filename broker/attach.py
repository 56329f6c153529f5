"""Begin an epoch: fence every older writer of a reply log, read it, and see whether the request is still mine."""

from dataclasses import dataclass

from broker.entry import EntryRef
from broker.fold import Fold
from broker.link import Link
from broker.reply_log import ReplyLog
from schemas.codec import Form
from schemas.events import Started
from schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Attached:
    """The log is open for writing; `fold` is what stands in it, this epoch's started event included."""

    log: ReplyLog
    fold: Fold


@dataclass(frozen=True, slots=True)
class NotMine:
    """The queue entry is gone or somebody else's: drop the request."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another, earlier entry of this id exists; mine has been acknowledged and deleted."""

    other: EntryRef


@dataclass(frozen=True, slots=True)
class Ended:
    """The log holds a terminal event; the clean-up has been finished."""

    fold: Fold


Attachment = Attached | NotMine | Duplicate | Ended


async def attach(
    link: Link,
    keys: Keys,
    *,
    request_id: str,
    worker: str,
    started: Started,
    ref: EntryRef | None,
    form: Form,
    log_expire_at_ms: int,
    retention_ms: int,
    owned: bool = True,
    above_epoch: int = 0,
) -> Attachment:
    """Fence, read, and decide.

    `ref` is the queue entry served; with `owned` it must be pending under `worker`. `log_expire_at_ms` is deadline +
    retention, `retention_ms` what a log that has ended gets. `above_epoch` is the newest epoch this process used for
    the request. Raises LinkLost (start again on a new link), Unwritable, Fenced (rivals kept attaching: later).
    """
    raise NotImplementedError
