"""Cancels a request wherever it is: durably, and at once if nobody works on it."""

from orcastream.broker.cancel import cancel
from orcastream.broker.connection import Connection
from orcastream.broker.ending import Ender
from orcastream.broker.entry import EntryRef
from orcastream.broker.origin import find_origin
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest


async def cancel_entry(
    link: Connection, keys: Keys, ender: Ender, request: GenerationRequest, ref: EntryRef, *, retention_ms: int
) -> None:
    """Cancel the request in the queue entry `ref`. Idempotent. Raises LinkLost, Unwritable."""
    await cancel(link, keys, request.id, expire_at_ms=request.deadline_ms + retention_ms)
    await ender.end_if_waiting(link, request, ref, "cancelled while it waited")


async def cancel_request(
    link: Connection, keys: Keys, ender: Ender, request_id: str, *, now_ms: int, retention_ms: int
) -> bool:
    """Cancel the request with this id, whether it waits or runs. Idempotent.

    Returns False if it has ended or is unknown. Raises LinkLost, Unwritable.
    """
    origin = await find_origin(link, keys, request_id, now_ms)
    if origin is None or origin.request is None or origin.ref is None:
        return False
    await cancel_entry(link, keys, ender, origin.request, origin.ref, retention_ms=retention_ms)
    return True
