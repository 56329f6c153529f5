"""The dead letters of one model: read a few at a time, and without what was asked in them unless it is wanted."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.connection import Connection
from broker.resp import fields_of
from broker.rows import PIECE, number, text
from broker.scripts import LETTERS
from schemas.keys import Keys

_OWN_PARTS: Final = 8
"""Names and values that bury.lua puts before the fields of the entry."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter: its own stream id, the entry it was (`class entry-id`), why, after how many attempts.

    What is known of the request is as it was found: the entry may have held anything.
    """

    letter_id: str
    entry: str
    reason: str
    message: str
    attempts: int
    request_id: str
    deadline_ms: int | None
    payload_bytes: int

    @property
    def buried_ms(self) -> int:
        """When it was set aside, by the server's clock; Unix time."""
        return int(self.letter_id.partition("-")[0])

    @property
    def priority_class(self) -> str:
        """The class of the entry that it was."""
        return self.entry.partition(" ")[0]

    @classmethod
    def from_row(cls, row: Sequence[bytes | int]) -> "DeadLetter":
        """From one row of letters.lua."""
        *parts, payload_bytes = row
        letter_id, entry, reason, message, attempts, request_id, deadline = (text(part) for part in parts)
        return cls(
            letter_id, entry, reason, message, number(attempts) or 0, request_id, number(deadline), int(payload_bytes)
        )


async def newest_letters(link: Connection, keys: Keys) -> AsyncIterator[DeadLetter]:
    """All dead letters that are there now, the newest first. Raises LinkLost, ResponseError."""
    begin = "+"
    while rows := await link.run(LETTERS, [keys.dead], [begin, PIECE]):
        for row in rows:
            yield DeadLetter.from_row(row)
        begin = f"({rows[-1][0].decode()}"


async def find_letter(link: Connection, keys: Keys, letter_id: str) -> tuple[DeadLetter, dict[bytes, bytes]] | None:
    """One dead letter and the whole fields of its request; None where there is none. Raises LinkLost, ResponseError."""
    found: list[Any] = await link.call("XRANGE", keys.dead, letter_id, letter_id)
    if not found:
        return None
    flat = found[0][1]
    own, request = fields_of(flat[:_OWN_PARTS]), fields_of(flat[_OWN_PARTS:])
    row = [found[0][0], *(own.get(name, b"") for name in (b"entry", b"reason", b"message", b"attempts"))]
    row += [request.get(b"id", b""), request.get(b"deadline", b""), len(request.get(b"payload", b""))]
    return DeadLetter.from_row(row), request


async def delete_letters(link: Connection, keys: Keys, letter_ids: Sequence[str]) -> int:
    """Delete dead letters; how many of them there were. Raises LinkLost, ResponseError."""
    return int(await link.call("XDEL", keys.dead, *letter_ids)) if letter_ids else 0
