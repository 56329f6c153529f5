"""Leases: the right to a claimed request, renewed while the engine makes progress."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.entry import EntryRef
from broker.errors import require
from broker.link import Link
from broker.scripts import HAND_OVER, RENEW, Command, ScriptCall
from schemas.keys import GROUP, Keys

HANDED_OVER_MS: Final = 365 * 24 * 3600 * 1000
"""Idle time that a hand-over sets: longer than any lease, and a mark that the entry was given away."""
CHUNK: Final = 256
"""Entries per script call, so that no call holds the server up."""


def was_handed_over(idle_ms: int) -> bool:
    """Whether the idle time of a pending entry is the mark of one that was given away, or that a sweep repaired."""
    return idle_ms >= HANDED_OVER_MS // 2


@dataclass(frozen=True, slots=True)
class Held:
    """A request whose lease is to be renewed; its reply log lives until `log_expire_at_ms` (deadline + retention)."""

    ref: EntryRef
    request_id: str
    log_expire_at_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Whether the entry is still mine, and whether the request was cancelled."""

    owned: bool
    cancelled: bool


class Leases:
    """Renews and hands over the leases of one worker; touches nothing that has become somebody else's."""

    def __init__(self, link: Link, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker

    async def renew(self, held: Sequence[Held]) -> dict[EntryRef, Lease]:
        """Renew leases and lifetimes of the reply logs, in one write; per entry, is it still mine, was it cancelled.

        Raises LinkLost, Unwritable.
        """
        chunks = list(_chunks(held))
        calls: list[Command | ScriptCall] = [
            RENEW.call(
                [self._keys.requests(name), *(self._keys.cancel(one.request_id) for one in chunk)],
                [GROUP, self._worker, *(one.ref.entry_id for one in chunk)],
            )
            for name, chunk in chunks
        ]
        lifetimes = [("PEXPIREAT", self._keys.reply(one.request_id), one.log_expire_at_ms) for one in held]
        replies = await self._link.call_many([*calls, *lifetimes])
        require(replies)
        return {
            one.ref: Lease(owned=bool(flag & 1), cancelled=bool(flag & 2))
            for (_, chunk), flags in zip(chunks, replies, strict=False)
            for one, flag in zip(chunk, flags, strict=True)
        }

    async def hand_over(self, refs: Iterable[EntryRef]) -> list[EntryRef]:
        """Let the leases expire at once; the deliveries do not count. Returns those that were still mine.

        Raises LinkLost, Unwritable.
        """
        chunks = list(_chunks([Held(ref, "", 0) for ref in refs]))
        replies = await self._link.call_many(
            [
                HAND_OVER.call(
                    [self._keys.requests(name)],
                    [GROUP, self._worker, HANDED_OVER_MS, *(one.ref.entry_id for one in chunk)],
                )
                for name, chunk in chunks
            ]
        )
        require(replies)
        return [
            one.ref
            for (_, chunk), flags in zip(chunks, replies, strict=True)
            for one, flag in zip(chunk, flags, strict=True)
            if flag
        ]


def _chunks(held: Sequence[Held]) -> Iterable[tuple[str, Sequence[Held]]]:
    """Class and entries, at most CHUNK at a time."""
    by_class: dict[str, list[Held]] = {}
    for one in held:
        by_class.setdefault(one.ref.priority_class, []).append(one)
    for name, ones in by_class.items():
        for begin in range(0, len(ones), CHUNK):
            yield name, ones[begin : begin + CHUNK]
