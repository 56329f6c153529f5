"""One reply log as it is read for one subscription: its read position, and the handling of holes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from orcastream.broker.errors import Gap, IdInUse, ReplyConflict, UnknownRequest
from orcastream.broker.fold import decode_entry
from orcastream.broker.loss import Watch
from orcastream.broker.resp import pack_parts
from orcastream.broker.subscription import ReplyState, Update
from orcastream.schemas.events import Event, EventId, PromptRun, Started, Terminal

START: Final = b"0-0"
"""The read position before the first entry of a log."""


class FollowedLog:
    """A reply log being read: its state, how far the stream was read, and when it was last heard of."""

    __slots__ = (
        "arrived_s",
        "checked_at",
        "entry_bytes",
        "has_ended",
        "has_paused",
        "heard_at",
        "key",
        "last_id",
        "look_at",
        "model",
        "packed_key",
        "state",
        "watch",
    )

    def __init__(self, watch: Watch, key: str, model: str, now: float) -> None:
        self.watch = watch
        self.model = model
        self.state = ReplyState(watch.request_id)
        self.key = key.encode()
        self.packed_key = pack_parts(self.key)
        self.last_id = START
        self.checked_at = now
        self.heard_at = self.look_at = now
        """When something last arrived, and when to check for more, if logs are read one by one."""
        self.arrived_s = now
        """When the entries being taken were read: see `Update.arrived_s`."""
        self.entry_bytes = 0
        """Of the newest entry: how large those that follow it are likely to be."""
        self.has_paused = False
        """Whether nothing was read since the last entries because the subscriber had too much unread."""
        self.has_ended = False
        """Whether a check found that the request has ended, before its end was read here."""

    @property
    def is_wanted(self) -> bool:
        """Whether to read on."""
        return not (self.state.finished or self.state.is_full)

    def begin_entries(self, now: float) -> None:
        """Entries have been read that are about to be taken; after a pause they may be too old to show that the request
        exists.
        """
        if not self.has_paused:
            self.checked_at = now
        self.arrived_s = float("-inf") if self.has_paused else now
        self.has_paused = False

    def ended_unread(self) -> None:
        """The request has ended, and its end will be read once the subscriber has taken what comes before it.

        From then on it is never queued again: a log that is gone has expired.
        """
        self.has_ended = True
        self.watch = replace(self.watch, request=None)

    def unreadable(self, why: str) -> None:
        """Fail the reply for good: the log can never be read."""
        self.state.fail(UnknownRequest(f"{self.watch.request_id}: {why}"))

    def take(self, entry: Sequence[Any]) -> bool:
        """Fold one entry in; False if the log must be read again from its start."""
        self.last_id = entry[0]
        self.entry_bytes = sum(map(len, entry[1]))
        decoded = decode_entry(entry)
        if decoded is None or self.state.finished:
            return True
        event_id, event = decoded
        if isinstance(event, Started) and event.model != self.model:
            self.state.fail(IdInUse(self.state.request_id))
            return True
        try:
            self._fold(event_id, event)
        except Gap as gap:
            return self._hole(event_id, event, gap)
        except ReplyConflict as conflict:
            self.state.fail(conflict)
        return True

    def _fold(self, event_id: EventId, event: Event) -> None:
        fold = self.state.fold
        before, told = fold.started, fold.prompt_told
        runs = tuple(fold.feed(event_id, event))
        is_new_epoch = fold.started is not before
        prompt = event.beyond(told) if isinstance(event, PromptRun) else None
        if runs or prompt is not None or is_new_epoch or isinstance(event, Terminal):
            counts, checksums = fold.progress()
            started = event if is_new_epoch and isinstance(event, Started) else None
            terminal = event if isinstance(event, Terminal) else None
            epoch, arrived_s = event_id.epoch, self.arrived_s
            update = Update(counts, checksums, epoch, runs, started, terminal, prompt, arrived_s)
            self.state.publish(update, self.entry_bytes)
        if self.state.reread_until is not None and event_id >= self.state.reread_until:
            self.state.reread_until = None

    def _hole(self, event_id: EventId, event: Event, gap: Gap) -> bool:
        """Read again from the start, once per epoch; entries after a permanent hole do not count."""
        state = self.state
        if state.reread_until is None and event_id.epoch > state.damaged_epoch:
            state.damaged_epoch, state.reread_until = event_id.epoch, event_id
            self.last_id = START
            return False
        if isinstance(event, Terminal):
            state.fail(ReplyConflict(f"the log ended, but tokens are missing in it: {gap}"))
        if state.reread_until is not None and event_id >= state.reread_until:
            state.reread_until = None
        return True


Took = Callable[[FollowedLog, Sequence[Any]], None]
"""Receives the entries read from a log."""
