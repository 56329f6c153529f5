"""Cancelling a request, whether it waits, runs, or has ended."""

from typing import TYPE_CHECKING

from broker.cancel import cancel
from broker.ending import Ender
from broker.origin import find_origin

if TYPE_CHECKING:
    from gateway.service import Gateway


async def cancel_request(gateway: "Gateway", request_id: str) -> bool:
    """Say so durably, and end the request here and now if nobody works on it. Idempotent.

    False where the request has ended. Raises LinkLost, Unwritable.
    """
    link = await gateway.redis.get()
    origin = await find_origin(link, gateway.keys, request_id, gateway.redis.now_ms)
    if origin is None or origin.request is None or origin.ref is None:
        return False
    retention_ms = gateway.settings.retention_ms
    expire_at_ms = origin.request.deadline_ms + retention_ms
    await cancel(link, gateway.keys, request_id, expire_at_ms=expire_at_ms)
    ender = Ender(gateway.keys, gateway.name, retention_ms=retention_ms, on_end=gateway.metrics.ended)
    await ender.end_if_waiting(link, origin.request, origin.ref, "cancelled while it waited")
    return True
