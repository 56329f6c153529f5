"""POST /v1/completions and /v1/chat/completions."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker.errors import BrokerError, IdInUse, ReplyExpired
from broker.posting import counting_request
from broker.queue import Enqueued
from gateway.admission import Admitted
from gateway.answer import as_api_error, gather, stream
from gateway.api_key import Grant
from gateway.errors import ApiError, id_in_use, reply_expired
from gateway.kind import Kind
from gateway.log import log_event
from gateway.query import check_query
from gateway.request_telemetry import RequestTelemetry
from gateway.session import Session
from gateway.sse import EventStream, disconnected
from schemas.request import GenerationRequest

if TYPE_CHECKING:
    from gateway.service import Gateway


async def generate(gateway: "Gateway", kind: Kind, request: Request) -> Response:
    """Admit, enqueue, answer. Raises ApiError, InvalidRequest, BrokerError."""
    telemetry = RequestTelemetry(gateway.metrics)
    grant = gateway.tenants.of(request.headers)
    check_query(request)
    raw = await request.body()
    await gateway.require_worker()
    gateway.admission.limits = gateway.workers.limits
    admitted = await _admit(gateway, kind, raw, grant, request)
    session = await _enqueue(gateway, admitted, grant, telemetry)
    headers = {"X-Request-Id": session.request_id}
    if admitted.stream:
        events = stream(session.updates(), session.shape, session.text, resumed=False, failed=session.failed)
        return EventStream(events, headers=headers, closed=session.close)
    return await _whole(session, request, headers)


async def _admit(gateway: "Gateway", kind: Kind, raw: bytes, grant: Grant, request: Request) -> Admitted:
    def admit() -> Admitted:
        now_ms = gateway.redis.now_ms
        admitted = gateway.admission.admit(kind, raw, tenant=grant.tenant, headers=request.headers, now_ms=now_ms)
        return replace(admitted, request=grant.applied_to(admitted.request))

    return await gateway.offload.run(len(raw), admit)


async def _enqueue(gateway: "Gateway", admitted: Admitted, grant: Grant, telemetry: RequestTelemetry) -> Session:
    telemetry.asked(admitted.request, gateway.settings.served_name)
    request, enqueued = await gateway.send(admitted.request, grant, durable=admitted.durable)
    queued = await _queued(gateway, request, enqueued)
    log_event(
        "repeated" if enqueued.duplicate else "accepted",
        request=request.id,
        entry=enqueued.entry,
        tenant=grant.tenant,
        user=admitted.user,
        prompt_tokens=len(request.payload.prompt),
        stream=admitted.stream,
    )
    return Session(
        gateway,
        request.id,
        grant.tenant,
        enqueued.entry,
        request=queued,
        accepted=queued == request,
        include_usage=admitted.include_usage,
        telemetry=telemetry,
    )


async def _queued(gateway: "Gateway", request: GenerationRequest, enqueued: Enqueued) -> GenerationRequest | None:
    """The request that counts under this id. Raises ApiError."""
    keys, redis = gateway.keys, gateway.redis
    try:
        return await gateway.patiently(lambda link: counting_request(link, keys, request, enqueued, redis.now_ms))
    except IdInUse as error:
        raise id_in_use(error) from None
    except ReplyExpired as error:
        raise reply_expired(error) from None


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
