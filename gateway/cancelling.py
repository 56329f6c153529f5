"""Cancelling a request, whether it waits, runs, or has ended."""

from typing import TYPE_CHECKING

from broker.cancelling import cancel_entry
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
    await cancel_entry(link, gateway.keys, gateway.ender, origin.request, origin.ref, retention_ms=retention_ms)
    return True
