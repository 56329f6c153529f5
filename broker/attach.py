"""Begins an epoch: fences every older writer of a reply log, reads it, and checks that the request is still mine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.cleanup import drop_duplicate, finish
from orcastream.broker.connection import Connection, time_ms
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import Fenced, Unusable, Unwritable, refusal, require
from orcastream.broker.fold import Fold, fold_log
from orcastream.broker.log_pages import first_page, rest_of_log
from orcastream.broker.queue import EntryState, entry_state, entry_state_call
from orcastream.broker.reply_log import REFUSED, ReplyLog
from orcastream.broker.scripts import BEGIN, Arg, Command, ScriptCall
from orcastream.schemas.codec import Form
from orcastream.schemas.events import EventId, Started, encode_event
from orcastream.schemas.keys import Keys

ATTEMPTS = 5
"""How often an attach is repeated because a rival attached during it."""
MAX_EPOCH = 2**64 - 1
"""The largest first part of an entry id."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The log is open for writing; `fold` holds its contents, including this epoch's started event.

    `cancelled`: whether the request was cancelled when the epoch began.
    """

    log: ReplyLog
    fold: Fold
    cancelled: bool


@dataclass(frozen=True, slots=True)
class NotMine:
    """The queue entry is gone or belongs to another worker: drop the request."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another entry of this id began the log, or is earlier; mine has been acknowledged and deleted."""

    other: EntryRef


@dataclass(frozen=True, slots=True)
class Ended:
    """The log holds a terminal event; the cleanup is complete."""

    fold: Fold


Attachment = Attached | NotMine | Duplicate | Ended


async def attach(
    link: Connection,
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
    first_claim_until_ms: int | None = None,
) -> Attachment:
    """Fence, read, and decide. Takes two round trips; one if there is no log and the first claim certainly holds.

    `ref` is the queue entry served; with `owned` it must be pending under `worker`. `log_expire_at_ms` is deadline +
    retention, `retention_ms` the lifetime of a log that has ended. `above_epoch` is the newest epoch this process used
    for the request. `first_claim_until_ms` is for the first attach to an entry that nobody had before: the server's
    time until which nobody else can have it. Raises LinkLost (start again on a new link), Unwritable, Fenced (rivals
    kept attaching: try later), and Unusable if no attempt can ever succeed.
    """
    task = _Attach(link, keys, request_id, worker if owned else None, started, ref, form, retention_ms)
    if first_claim_until_ms is not None and ref is not None:
        attachment = await task.begin(ref.order[0], first_claim_until_ms, log_expire_at_ms)
        if attachment is not None:
            return attachment
    for _ in range(ATTEMPTS):
        attachment = await task.attempt(log_expire_at_ms, above_epoch)
        if attachment is not None:
            return attachment
    await task.check_usable()
    raise Fenced(f"{task.log_key}: rivals attached {ATTEMPTS} times during an attach")


@dataclass(slots=True)
class _Attach:
    link: Connection
    keys: Keys
    request_id: str
    owner: str | None
    started: Started
    ref: EntryRef | None
    form: Form
    retention_ms: int
    refused_epoch: int = 0

    @property
    def log_key(self) -> str:
        return self.keys.reply(self.request_id)

    async def begin(self, arrived_ms: int, claimed_until_ms: int, log_expire_at_ms: int) -> Attachment | None:
        """Begin a log that nobody has begun; None if that is not possible, and `attempt` finds out why."""
        times_ms = (arrived_ms, claimed_until_ms, log_expire_at_ms, self.retention_ms)
        batch: list[Command | ScriptCall] = [
            BEGIN.call([self.log_key], [*times_ms, *encode_event(self.started, self.form)]),
            ("EXISTS", self.keys.cancel(self.request_id)),
        ]
        epoch, cancelled, *state = replies = await self.link.call_in_order(self._with_state(batch))
        if not epoch or any(isinstance(reply, ResponseError) for reply in replies):
            return None
        if not self._is_mine(state):
            return NotMine()
        fold = Fold()
        fold.feed(EventId(epoch, 0), self.started)
        return Attached(await self._log(epoch), fold, bool(cancelled))

    async def attempt(self, log_expire_at_ms: int, above_epoch: int) -> Attachment | None:
        """Make one attempt; None if a rival's epoch came in between."""
        look: list[Command] = [
            ("XREVRANGE", self.log_key, "+", "-", "COUNT", 1),
            ("XRANGE", self.log_key, "-", "+", "COUNT", 1),
            ("TIME",),
        ]
        newest, oldest, now, *state = await self._call(look)
        self._check_model(oldest)
        if newest and fold_log(newest).terminal is not None:
            return await self._ended(fold_log(await self._rest(await self._call_one(*first_page(self.log_key)))))
        if not self._is_mine(state):
            return NotMine()
        now_ms, newest_epoch = time_ms(now), _epoch_of(newest)
        epoch = max(now_ms, newest_epoch + 1, above_epoch + 1)
        if epoch > MAX_EPOCH:
            raise Unusable(ResponseError(f"{self.log_key}: no epoch is left above {newest_epoch}"))
        fence: list[Command] = [
            ("XADD", self.log_key, f"{epoch}-0", *encode_event(self.started, self.form)),
            ("PEXPIREAT", self.log_key, max(log_expire_at_ms, now_ms + self.retention_ms)),
            first_page(self.log_key),
            ("EXISTS", self.keys.cancel(self.request_id)),
        ]
        written, _, entries, cancelled, *state = await self._call(fence, may_refuse=True)
        if isinstance(written, ResponseError):
            self.refused_epoch = epoch
            return None
        return await self._decide(epoch, fold_log(await self._rest(entries)), bool(cancelled), state)

    def _check_model(self, oldest: Sequence[Any]) -> None:
        """Raise Unusable if the log is that of another model's request, which has the same id."""
        started = fold_log(oldest).started
        if started is not None and started.model != self.keys.model:
            why = f"the id {self.request_id} belongs to a request for the model {started.model}"
            raise Unusable(ResponseError(why))

    async def check_usable(self) -> None:
        """Raise Unusable if an epoch above all entries of the log was refused: a deleted id blocks it."""
        newest = await self._call_one("XREVRANGE", self.log_key, "+", "-", "COUNT", "1")
        if _epoch_of(newest) < self.refused_epoch:
            raise Unusable(ResponseError(f"{self.log_key}: a deleted entry id is above every epoch"))

    async def _decide(self, epoch: int, fold: Fold, cancelled: bool, state: Sequence[Any]) -> Attachment | None:
        if fold.terminal is not None:
            return await self._ended(fold)
        if not self._is_mine(state):
            return NotMine()
        if fold.last_id is not None and fold.last_id.epoch > epoch:
            return None
        other = await self._other_entry(fold)
        if other is not None:
            return other
        return Attached(await self._log(epoch), fold, cancelled)

    async def _log(self, epoch: int) -> ReplyLog:
        try:
            link = await self.link.link_for(self.log_key)
        except ResponseError as error:
            raise Unwritable(error) from None
        return ReplyLog(link, self.log_key, epoch, self.form, is_moving=self.link.is_moving(self.log_key))

    def _is_mine(self, state: Sequence[Any]) -> bool:
        if self.owner is None or self.ref is None:
            return True
        now = EntryState.from_reply(state[0])
        return now.exists and now.consumer == self.owner

    async def _ended(self, fold: Fold) -> Ended:
        if fold.terminal is not None:
            await finish(
                self.link,
                self.keys,
                request_id=self.request_id,
                tenant=(fold.started or self.started).tenant,
                ref=self.ref,
                terminal=fold.terminal,
                retention_ms=self.retention_ms,
            )
        return Ended(fold)

    async def _other_entry(self, fold: Fold) -> Duplicate | None:
        """Two entries of one id must neither fence each other forever nor continue each other's answer: the entry that
        began the log stays, or, if it is gone, the earlier one.
        """
        if self.ref is None or fold.previous_started is None:
            return None
        entries = fold.first_entry, fold.previous_started.entry
        first, before = (EntryRef.find(entry, self.ref.lane) for entry in entries)
        if first == self.ref:
            return None
        earlier = None if before is None or before >= self.ref else before
        for other in dict.fromkeys((first, earlier)):
            if other is not None and (await entry_state(self.link, self.keys, other, self.request_id)).exists:
                await drop_duplicate(self.link, self.keys, request_id=self.request_id, ref=self.ref, stays=other)
                return Duplicate(other)
        return None

    async def _call(self, commands: Sequence[Command], *, may_refuse: bool = False) -> list[Any]:
        """Carry out `commands`, the first of which concerns the log; with an owner, also query the entry's state.

        If the log is written, the state is the one after the write.
        """
        batch = self._with_state(commands)
        replies = await (self.link.call_in_order(batch) if may_refuse else self.link.call_many(batch))
        about_log = replies[0]
        if not isinstance(about_log, ResponseError):
            require(replies)
        elif may_refuse and REFUSED in str(about_log):
            require(replies[1:])
        else:
            raise refusal(about_log)
        return replies

    def _with_state(self, commands: Sequence[Command | ScriptCall]) -> list[Command | ScriptCall]:
        """Return `commands`, with an owner followed by the query for the entry's state."""
        if self.owner is None or self.ref is None:
            return list(commands)
        return [*commands, entry_state_call(self.keys, self.ref, self.request_id)]

    async def _call_one(self, *command: Arg) -> Any:
        (reply,) = await self.link.call_many([command])
        if isinstance(reply, ResponseError):
            raise refusal(reply)
        return reply

    async def _rest(self, entries: Sequence[Any]) -> list[Any]:
        """Return the whole log, of which `entries` are the first page."""
        try:
            return await rest_of_log(self.link, self.log_key, entries)
        except ResponseError as error:
            raise refusal(error) from None


def _epoch_of(newest: Sequence[Any]) -> int:
    """Return the epoch of a log's newest entry; 0 if it is empty."""
    return EventId.parse(newest[0][0]).epoch if newest else 0
