"""The dead letters of one model: read a few at a time, and without their prompts unless requested."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orcastream.broker.connection import Connection
from orcastream.broker.resp import fields_of
from orcastream.broker.rows import PIECE, number, text
from orcastream.broker.scripts import LETTERS
from orcastream.schemas.keys import Keys

_OWN_PARTS: Final = 10
"""Names and values that bury.lua puts before the fields of the entry."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter: its own stream id, its entry (`class entry-id`), the reason, and the number of attempts.

    In lanes other than 0, the id ends with the lane: `1700000000000-0.3`.

    Data about the request is as found: the entry may have held anything.
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
        """The class of its entry."""
        return self.entry.partition(" ")[0]

    @classmethod
    def from_row(cls, row: Sequence[bytes | int], lane: int) -> "DeadLetter":
        """Build from one row of letters.lua."""
        *parts, payload_bytes = row
        letter_id, entry, reason, message, attempts, request_id, deadline = (text(part) for part in parts)
        letter_id += f".{lane}" if lane else ""
        return cls(
            letter_id, entry, reason, message, number(attempts) or 0, request_id, number(deadline), int(payload_bytes)
        )


async def newest_letters(link: Connection, keys: Keys) -> AsyncIterator[DeadLetter]:
    """Yield all current dead letters, lane by lane, the newest first. Raises LinkLost, ResponseError."""
    for lane in keys.each_lane:
        begin = "+"
        while rows := await link.run(LETTERS, [lane.dead], [begin, PIECE]):
            for row in rows:
                yield DeadLetter.from_row(row, lane.lane)
            begin = f"({rows[-1][0].decode()}"


async def find_letter(link: Connection, keys: Keys, letter_id: str) -> tuple[DeadLetter, dict[bytes, bytes]] | None:
    """Return one dead letter and all fields of its request; None if there is none. Raises LinkLost, ResponseError."""
    place = _place(keys, letter_id)
    if place is None:
        return None
    lane, stream_id = place
    found: list[Any] = await link.call("XRANGE", lane.dead, stream_id, stream_id)
    if not found:
        return None
    flat = found[0][1]
    own, request = fields_of(flat[:_OWN_PARTS]), fields_of(flat[_OWN_PARTS:])
    row = [found[0][0], *(own.get(name, b"") for name in (b"entry", b"reason", b"message", b"attempts"))]
    row += [request.get(b"id", b""), request.get(b"deadline", b""), len(request.get(b"payload", b""))]
    return DeadLetter.from_row(row, lane.lane), request


async def delete_letters(link: Connection, keys: Keys, letter_ids: Sequence[str]) -> int:
    """Delete dead letters; return how many existed. Raises LinkLost, ResponseError."""
    by_stream: dict[str, list[str]] = {}
    for lane, stream_id in filter(None, (_place(keys, letter_id) for letter_id in letter_ids)):
        by_stream.setdefault(lane.dead, []).append(stream_id)
    return sum([int(await link.call("XDEL", stream, *ids)) for stream, ids in by_stream.items()])


def _place(keys: Keys, letter_id: str) -> tuple[Keys, str] | None:
    """Return the keys of a letter's lane, and its id there; None if the queue has no such lane."""
    stream_id, _, lane = letter_id.partition(".")
    number_of_lane = int(lane or 0)
    return (keys.in_lane(number_of_lane), stream_id) if number_of_lane < keys.queue_lanes else None
