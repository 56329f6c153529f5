"""/v1/requests/{id}: go on reading a reply, or cancel the request."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker.cancelling import cancel_request
from broker.origin import Origin, find_origin
from gateway.answer import stream
from gateway.delivered import Delivered
from gateway.errors import not_found, unavailable
from gateway.log import log_event
from gateway.query import check_query, read_flag
from gateway.request_telemetry import RequestTelemetry
from gateway.session import Session
from gateway.sse import EventStream
from schemas.limits import ID_PATTERN

if TYPE_CHECKING:
    from gateway.service import Gateway


async def events(gateway: "Gateway", request: Request) -> Response:
    """GET: the reply from behind `Last-Event-ID` on, or from its start, whichever gateway took the request."""
    if gateway.stopping:
        raise unavailable("This gateway is stopping.", "gateway_stopping")
    request_id, origin = await _of_tenant(gateway, request)
    check_query(request, "include_usage")
    telemetry = RequestTelemetry(gateway.metrics, timed=False)
    priority_class = None if origin.ref is None else origin.ref.priority_class
    telemetry.resumed(request_id, gateway.settings.served_name, origin.tenant, priority_class)
    last_event_id = request.headers.get("last-event-id")
    resume = Delivered.parse(last_event_id) if last_event_id else None
    session = Session(
        gateway,
        request_id,
        origin.tenant,
        origin.ref,
        request=origin.request,
        accepted=False,
        include_usage=read_flag(request, "include_usage"),
        telemetry=telemetry,
        resume=resume,
    )
    log_event("resumed", request=request_id, behind=last_event_id)
    parts = stream(session.updates(), session.shape, session.text, resumed=resume is not None, failed=session.failed)
    return EventStream(parts, headers={"X-Request-Id": request_id}, closed=session.close)


async def cancel(gateway: "Gateway", request: Request) -> Response:
    """DELETE: cancel. `cancelled` is false where the request had ended before."""
    request_id, _ = await _of_tenant(gateway, request)
    check_query(request)
    link, keys, ender = await gateway.redis.get(), gateway.keys, gateway.ender
    now_ms, retention_ms = gateway.redis.now_ms, gateway.settings.retention_ms
    cancelled = await cancel_request(link, keys, ender, request_id, now_ms=now_ms, retention_ms=retention_ms)
    log_event("cancelled", request=request_id, why="asked for", ended_before=not cancelled)
    return JSONResponse(
        {"id": request_id, "object": "request", "cancelled": cancelled}, headers={"X-Request-Id": request_id}
    )


async def _of_tenant(gateway: "Gateway", request: Request) -> tuple[str, Origin]:
    """The id in the path and what is known of it; ApiError 404 where nothing is, or it is another tenant's."""
    tenant = gateway.tenants.of(request.headers).tenant
    request_id = request.path_params["request_id"]
    if not ID_PATTERN.fullmatch(request_id):
        raise not_found(request_id)
    origin = await gateway.patiently(lambda link: find_origin(link, gateway.keys, request_id, gateway.redis.now_ms))
    if origin is None or origin.tenant != tenant:
        raise not_found(request_id)
    return request_id, origin
