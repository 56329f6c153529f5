"""Leases: the right to a claimed request, renewed while the engine makes progress."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from redis.exceptions import ResponseError

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, stream_of
from orcastream.broker.errors import require
from orcastream.broker.scripts import ATTEMPT, HAND_OVER, RENEW, Arg, Command, ScriptCall
from orcastream.schemas.keys import GROUP, Keys

HANDED_OVER_MS: Final = 365 * 24 * 3600 * 1000
"""Idle time that a hand-over sets: longer than any lease, so that it marks the entry as handed over."""
LEAST_MARK_MS: Final = HANDED_OVER_MS // 2
"""An entry idle for longer was handed over."""
SUSPECT_MS: Final = 2 * HANDED_OVER_MS
"""The idle time of an entry handed over as a suspect (`orcastream.broker.claimed`)."""
_DEATHS_BESIDE_OTHERS: Final = 2
"""How many workers in a row may end while they compute a request beside others, before it runs alone."""
CHUNK: Final = 256
"""Entries per script call, so that no call blocks the server for long."""


def was_handed_over(idle_ms: int) -> bool:
    """Whether this idle time of a pending entry marks one that was handed over, or repaired by a sweep."""
    return idle_ms >= LEAST_MARK_MS


def is_suspect(idle_ms: int, deliveries: int, max_deliveries: int) -> bool:
    """Whether an entry taken over at this idle time, after so many deliveries that count, is a suspect: it was handed
    over as one, or its lease expired and `ends_workers`.
    """
    if was_handed_over(idle_ms):
        return idle_ms >= SUSPECT_MS - LEAST_MARK_MS
    return ends_workers(deliveries, max_deliveries)


def ends_workers(deliveries: int, max_deliveries: int) -> bool:
    """Whether a request whose worker died is a likely cause: no output of it is newer than the death before, or only
    one attempt is allowed.
    """
    return deliveries >= min(_DEATHS_BESIDE_OTHERS, max_deliveries)


@dataclass(frozen=True, slots=True)
class Held:
    """A request whose lease must be renewed; its reply log lives until `log_expire_at_ms` (deadline + retention)."""

    ref: EntryRef
    request_id: str
    log_expire_at_ms: int


@dataclass(frozen=True, slots=True)
class Given:
    """A request to hand over: whether it is still a suspect, and whether its solo attempt was counted needlessly."""

    ref: EntryRef
    suspect: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Whether the entry is still mine, and whether the request was cancelled."""

    owned: bool
    cancelled: bool


class Leases:
    """Renews and hands over the leases of one worker; touches nothing that belongs to another worker by now."""

    def __init__(self, link: Connection, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker

    async def renew(self, held: Sequence[Held]) -> dict[EntryRef, Lease]:
        """Renew leases and reply log lifetimes in one write; return each entry's lease state.

        In a cluster, entries whose node is down are omitted. Raises LinkLost; Unwritable if nothing was renewed.
        """
        chunks = list(_chunks(self._keys, held))
        calls: list[Command | ScriptCall] = [
            RENEW.call([stream], [GROUP, self._worker, *(one.ref.entry_id for one in chunk)])
            for stream, chunk in chunks
        ]
        # Not by the script: while a slot is being moved, a script that names keys which are not there is refused.
        cancels = [("EXISTS", self._keys.cancel(one.request_id)) for _, chunk in chunks for one in chunk]
        lifetimes = [("PEXPIREAT", self._keys.reply(one.request_id), one.log_expire_at_ms) for one in held]
        replies = await self._link.call_many([*calls, *cancels, *lifetimes])
        if all(isinstance(reply, ResponseError) for reply in replies[: len(chunks)]):
            require(replies)
        told = iter(replies[len(chunks) :])
        leases: dict[EntryRef, Lease] = {}
        for (_, chunk), owned in zip(chunks, replies, strict=False):
            for number, (one, cancelled) in enumerate(zip(chunk, told, strict=False)):
                if not isinstance(owned, ResponseError):
                    leases[one.ref] = Lease(owned=owned[number] == 1, cancelled=cancelled == 1)
        return leases

    async def hand_over(self, given: Iterable[Given | EntryRef]) -> list[EntryRef]:
        """Let the leases expire at once, and wake idle workers; the deliveries do not count.

        Returns the entries that were still mine. Raises LinkLost, Unwritable.
        """
        chunks = list(_chunks(self._keys, [one if isinstance(one, Given) else Given(one) for one in given]))
        if not chunks:
            return []
        calls: list[Command | ScriptCall] = [
            HAND_OVER.call([stream], [GROUP, self._worker, *_marks(chunk)]) for stream, chunk in chunks
        ]
        *replies, _ = await self._link.call_in_order([*calls, wake_up(self._keys, Control("waiting", self._worker))])
        require(replies)
        return [
            one.ref
            for (_, chunk), flags in zip(chunks, replies, strict=True)
            for one, flag in zip(chunk, flags, strict=True)
            if flag
        ]

    def count_attempt(self, ref: EntryRef) -> None:
        """Count an attempt at a suspect, which the engine starts alone, until it makes progress. Does not wait for the
        reply.
        """
        self._set_deliveries(ref, "+1")

    def forgive(self, ref: EntryRef) -> None:
        """Reset a request's attempts after it made progress. Does not wait for the reply."""
        self._set_deliveries(ref, "1")

    def _set_deliveries(self, ref: EntryRef, deliveries: str) -> None:
        call = ATTEMPT.call([stream_of(self._keys, ref)], [GROUP, self._worker, ref.entry_id, deliveries])
        self._link.post([call])


def _marks(given: Sequence[Given]) -> Iterator[Arg]:
    """Yield the arguments of hand_over.lua for each entry."""
    for one in given:
        yield from (one.ref.entry_id, SUSPECT_MS if one.suspect else HANDED_OVER_MS, 2 if one.counted else 1)


_Entry = TypeVar("_Entry", Held, Given)


def _chunks(keys: Keys, held: Sequence[_Entry]) -> Iterable[tuple[str, Sequence[_Entry]]]:
    """Yield request streams with their entries, at most CHUNK at a time."""
    by_stream: dict[str, list[_Entry]] = {}
    for one in held:
        by_stream.setdefault(stream_of(keys, one.ref), []).append(one)
    for stream, ones in by_stream.items():
        for begin in range(0, len(ones), CHUNK):
            yield stream, ones[begin : begin + CHUNK]
