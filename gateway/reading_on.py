"""Resumes a reply for a client that may have sent its request to another gateway."""

from starlette.requests import Request
from starlette.responses import Response

from orcastream.gateway.errors import gateway_stopping, not_found
from orcastream.gateway.http.request_id import name_request
from orcastream.gateway.replies.answer import stream
from orcastream.gateway.replies.reply_session import ReplySession
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.replies.sse import EventStream, head_of_stream
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.served_models import Found
from orcastream.gateway.service import Gateway
from orcastream.schemas.limits import ID_PATTERN


async def find_request(gateway: Gateway, request: Request) -> Found:
    """Return the request in the path, whose id the answer gets. Raises ApiError 404 if this tenant has no such one."""
    tenant = gateway.tenants.of(request.headers).tenant
    request_id = request.path_params["request_id"]
    found = await gateway.models.find(request_id, tenant) if ID_PATTERN.fullmatch(request_id) else None
    if found is None:
        raise not_found(request_id)
    name_request(request.scope, found.shown_id)
    return found


def require_serving(gateway: Gateway) -> None:
    """Raise ApiError 503 if this gateway is stopping: it starts no more streams."""
    if gateway.shutdown.stopping:
        raise gateway_stopping()


def read_on(request: Request, found: Found, writer: ReplyWriter) -> Response:
    """Stream the rest of the reply, as `writer` writes it; HEAD reads nothing, so its client is no reader."""
    if request.method == "HEAD":
        return head_of_stream()
    session = _session(found)
    parts = stream([(session.updates(), writer)], found.shown_id, session.failed)
    return EventStream(parts, closed=session.close)


def _session(found: Found) -> ReplySession:
    model, origin = found.model, found.origin
    telemetry = RequestTelemetry(timed=False)
    priority_class = None if origin.ref is None else origin.ref.priority_class
    telemetry.resumed(found.request_id, model.name, origin.tenant, priority_class, model.metrics)
    return ReplySession(
        model,
        found.request_id,
        origin.tenant,
        origin.ref,
        request=origin.request,
        accepted=False,
        telemetry=telemetry,
    )
