"""POST /v1/completions and /v1/chat/completions."""

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker.errors import BrokerError
from broker.origin import find_origin
from gateway.admission import Admitted
from gateway.answer import as_api_error, gather, stream
from gateway.errors import ApiError, id_in_use
from gateway.kind import Kind
from gateway.log import log_event
from gateway.request_telemetry import RequestTelemetry
from gateway.session import Session
from gateway.sse import EventStream, disconnected

if TYPE_CHECKING:
    from gateway.service import Gateway

_INLINE_BYTES = 16 * 1024
"""A body up to this size is tokenized at once; a larger one in a thread, so that it holds nobody up."""


async def generate(gateway: "Gateway", kind: Kind, request: Request) -> Response:
    """Admit, enqueue, answer. Raises ApiError, InvalidRequest, BrokerError."""
    telemetry = RequestTelemetry(gateway.metrics)
    tenant = gateway.tenants.of(request.headers)
    raw = await request.body()
    await gateway.require_worker()
    gateway.admission.limits = gateway.workers.limits
    admitted = await _admit(gateway, kind, raw, tenant, request)
    session = await _enqueue(gateway, admitted, tenant, telemetry)
    headers = {"X-Request-Id": session.request_id}
    if admitted.stream:
        events = stream(session.updates(), session.shape, session.text, resumed=False, failed=session.failed)
        return EventStream(events, headers=headers, closed=session.close)
    return await _whole(session, request, headers)


async def _admit(gateway: "Gateway", kind: Kind, raw: bytes, tenant: str, request: Request) -> Admitted:
    def admit() -> Admitted:
        return gateway.admission.admit(kind, raw, tenant=tenant, headers=request.headers, now_ms=gateway.redis.now_ms)

    return admit() if len(raw) <= _INLINE_BYTES else await asyncio.to_thread(admit)


async def _enqueue(gateway: "Gateway", admitted: Admitted, tenant: str, telemetry: RequestTelemetry) -> Session:
    telemetry.asked(admitted.request, gateway.settings.served_name)
    request, enqueued = await gateway.send(admitted.request)
    if enqueued.duplicate:
        await _check_owner(gateway, request.id, tenant)
    log_event(
        "repeated" if enqueued.duplicate else "accepted",
        request=request.id,
        entry=enqueued.entry,
        tenant=tenant,
        user=admitted.user,
        prompt_tokens=len(request.payload.prompt),
        stream=admitted.stream,
    )
    session = Session(
        gateway,
        request.id,
        tenant,
        enqueued.entry,
        request=request,
        accepted=True,
        include_usage=admitted.include_usage,
        telemetry=telemetry,
    )
    await session.open()
    return session


async def _check_owner(gateway: "Gateway", request_id: str, tenant: str) -> None:
    """An id that is taken belongs to whoever took it first."""
    origin = await find_origin(await gateway.redis.get(), gateway.keys, request_id, gateway.redis.now_ms)
    if origin is not None and origin.tenant != tenant:
        raise id_in_use(request_id)


async def _whole(session: Session, request: Request, headers: dict[str, str]) -> Response:
    """The answer in one piece, unless the client leaves while it is made."""
    gathering = asyncio.ensure_future(gather(session.updates(), session.shape, session.text))
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((gathering, leaving), return_when=asyncio.FIRST_COMPLETED)
        left = not gathering.done()
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        leaving.cancel()
        gathering.cancel()
        await asyncio.gather(gathering, leaving, return_exceptions=True)
        await session.close(left=left)
    if left:
        return Response(status_code=499)
    try:
        return JSONResponse(gathering.result(), headers=headers)
    except (ApiError, BrokerError) as error:
        told = as_api_error(error, session.request_id)
        told.headers.update(headers)
        told.refused = False
        session.failed(told)
        raise told from None
