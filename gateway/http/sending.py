"""How an answer is sent where the client's version of HTTP, or a body that it still sends, leaves a choice."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from orcastream.gateway.admission.body_limit import announced_in

DROP_BYTES: Final = 64 * 1024 * 1024
_DROP_S: Final = 10.0
"""How much is dropped of a body that nobody has read, and for how long."""


def adapt(cycle: RequestResponseCycle) -> None:
    """Let an answer be sent as its client's version of HTTP, and a body that still arrives, require."""
    if cycle.scope["http_version"] == "1.0":
        cycle.waiting_for_100_continue = False  # HTTP/1.0 has no interim answers
        _send_without_chunks(cycle)
    _send_after_body(cycle)


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """Let the end of the connection be the end of an answer of unknown length: HTTP/1.0 has no chunks."""
    send = cycle.send

    async def send_as_it_is(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = send_as_it_is  # type: ignore[method-assign]  # this answer's alone


def _send_after_body(cycle: RequestResponseCycle) -> None:
    """Let an answer that needs no more of the request's body wait until the body is received and dropped.

    A client, or a proxy, that is still sending when the connection closes sees a reset instead of the answer. One that
    waits for 100 Continue, having sent nothing of its body, is answered at once. Whether it still sends the body is
    unknown (RFC 9110, section 10.1.1), so the next bytes could be taken for either the body or another request, and the
    connection closes; so it does where the body is too long to be dropped.
    """
    send = cycle.send

    async def send_after_body(message: Any) -> None:
        if not cycle.response_started and cycle.more_body:
            is_awaited = cycle.waiting_for_100_continue and not cycle.body
            cycle.keep_alive = not is_awaited and await _drop_body(cycle) and cycle.keep_alive
        await send(message)

    cycle.send = send_after_body  # type: ignore[method-assign]  # this answer's alone


async def _drop_body(cycle: RequestResponseCycle) -> bool:
    """Receive the rest of a body and drop it; return False if it did not end in time, or is too long."""
    announced_bytes = announced_in(dict(cycle.scope["headers"]).get(b"content-length", b""))
    if announced_bytes is not None and announced_bytes > DROP_BYTES:
        return False
    left_bytes = DROP_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            while cycle.more_body and left_bytes > 0 and not cycle.disconnected:
                message: Any = await cycle.receive()
                left_bytes -= len(message.get("body", b""))
    return not cycle.more_body
