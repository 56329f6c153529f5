"""Running a dead letter again: a new request with an id of its own, which follows from the letter."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef
from orcastream.broker.letters import DeadLetter, delete_letters
from orcastream.broker.queue import RequestQueue
from orcastream.schemas.keys import CLASSES, Keys
from orcastream.schemas.limits import ID_PATTERN, MAX_ID_LENGTH
from orcastream.schemas.request import GenerationRequest

_DEFAULT_CLASS: Final = "normal"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The request that a dead letter became; `again` where it had become that already, and nothing was added."""

    request_id: str
    entry: EntryRef
    again: bool


def replay_id(keys: Keys, letter: DeadLetter) -> str:
    """The id under which a letter is run again, the same each time.

    Never the old one: its reply log has ended, and who reads it has been told so. The old id stands in front, since a
    gateway tells the shape of an answer from it.
    """
    suffix = f".r{letter.letter_id}"
    known = letter.request_id if ID_PATTERN.fullmatch(letter.request_id) else f"replay-{crc32(keys.model.encode()):08x}"
    return known[: MAX_ID_LENGTH - len(suffix)] + suffix


async def replay(
    link: Connection,
    keys: Keys,
    letter: DeadLetter,
    fields: Mapping[bytes, bytes],
    *,
    timeout_ms: int,
    retention_ms: int,
) -> Replayed:
    """Put what a dead letter asked for into the queue again, once, and delete the letter.

    `fields` are those of its request. Nobody waits for the answer: the loss of a client does not cancel it. To be
    called again after LinkLost: while the new request is remembered there is no second one. Raises InvalidRequest where
    the contract does not allow the request, LinkLost, ResponseError.
    """
    now_ms = await link.server_time_ms()
    priority_class = letter.priority_class if letter.priority_class in CLASSES else _DEFAULT_CLASS
    wanted = {name: value for name, value in fields.items() if name not in (b"traceparent", b"tracestate")}
    wanted |= {
        b"id": replay_id(keys, letter).encode(),
        b"class": priority_class.encode(),
        b"deadline": str(now_ms + timeout_ms).encode(),
    }
    request = GenerationRequest.from_fields(wanted, stream_class=priority_class, now_ms=now_ms)
    request = replace(request, payload=request.payload.model_copy(update={"on_disconnect": "continue"}))
    enqueued = await RequestQueue(link, keys).enqueue(request, terms=None, retention_ms=retention_ms)
    await delete_letters(link, keys, [letter.letter_id])
    return Replayed(request.id, enqueued.entry, enqueued.duplicate)
