"""What Redis knows about a request with a given id: its tenant, and how it behaves."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.aside import read_aside
from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef, Mark, stream_of
from orcastream.broker.errors import WRONG_TYPE, error_code, require
from orcastream.broker.fold import decode_entry
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import Command
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.events import Started
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a request. `request` is None if its queue entry is gone or cannot be parsed.

    `num_choices`: how many choices its answer has.
    """

    tenant: str
    model: str
    """The model of the request: the log has one name for all models."""
    ref: EntryRef | None
    num_choices: int
    request: GenerationRequest | None = None

    @property
    def on_disconnect(self) -> str:
        """What the loss of the client means; nothing for a request whose entry is gone: it has ended."""
        return "continue" if self.request is None else self.request.payload.on_disconnect


async def find_origin(link: Connection, keys: Keys, request_id: str, now_ms: int) -> Origin | None:
    """Read the `seen` key, the queue entry and the head of the reply log; None if all of them are gone.

    Unreadable data counts as missing. Raises LinkLost, Unwritable.
    """
    commands: list[Command] = [
        ("GET", keys.seen(request_id)),
        ("XRANGE", keys.reply(request_id), "-", "+", "COUNT", 1),
    ]
    seen, head = replies = [_or_missing(reply) for reply in await link.call_many(commands)]
    require(replies)
    started = _started(head)
    lane = keys.lane_of(request_id)
    mark = Mark.find(seen, lane) if seen is not None else None
    ref = None if mark is None else mark.ref
    if ref is None and started is not None:
        ref = EntryRef.find(started.entry, lane)
    request = None if ref is None else await read_request(link, keys, ref, now_ms)
    if request is not None and request.id == request_id:
        return Origin(request.payload.tenant, keys.model, ref, request.payload.n, request)
    return None if started is None else Origin(started.tenant, started.model, ref, started.n)


async def read_request(link: Connection, keys: Keys, ref: EntryRef, now_ms: int) -> GenerationRequest | None:
    """Return the request in a queue entry; None if the entry is gone or cannot be parsed. Raises LinkLost."""
    entries = await link.call("XRANGE", stream_of(keys, ref), ref.entry_id, ref.entry_id)
    if not entries:
        return None
    fields = fields_of(entries[0][1])
    read = partial(GenerationRequest.from_fields, fields, stream_class=ref.priority_class, now_ms=now_ms)
    try:
        return await read_aside(read, len(fields.get(b"payload", b"")))
    except InvalidRequest:
        return None
    except Exception:  # whoever looks at one entry deals with others, too
        log.exception("entry %s cannot be read", ref)
        return None


def _or_missing(reply: Any) -> Any:
    return None if isinstance(reply, ResponseError) and error_code(reply) == WRONG_TYPE else reply


def _started(head: Sequence[Any] | None) -> Started | None:
    decoded = decode_entry(head[0]) if head else None
    event = None if decoded is None else decoded[1]
    return event if isinstance(event, Started) else None
