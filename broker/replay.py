"""Runs a dead letter again: a new request with its own id, derived from the letter."""

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
    """The request made from a dead letter; `again` if it existed already, and nothing was added."""

    request_id: str
    entry: EntryRef
    again: bool


def replay_id(keys: Keys, letter: DeadLetter) -> str:
    """Return the id under which a letter is run again, the same each time.

    It is never the old id, whose reply log has ended, as its readers have been told. It begins with the old id, from
    which gateways derive the format of an answer.
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
    """Put the request of a dead letter into the queue again, once, and delete the letter.

    `fields` are those of its request. Nobody waits for the answer: the loss of a client does not cancel it. Call again
    after LinkLost: while the new request is remembered, no second one is added. Raises InvalidRequest if the contract
    does not allow the request, LinkLost, ResponseError.
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
