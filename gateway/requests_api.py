"""/v1/requests/{id}: resume reading a reply, or cancel the request."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.gateway.admission.query import check_query, read_flag
from orcastream.gateway.admission.single_header import single_header
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.endpoints import RESPONSES
from orcastream.gateway.openai.options import UsageWanted
from orcastream.gateway.openai.responses.behind import Behind
from orcastream.gateway.openai.responses.writer import ResponseWriter
from orcastream.gateway.reading_on import find_request, read_on, require_serving
from orcastream.gateway.replies.delivered import Delivered
from orcastream.gateway.replies.event_writer import EventWriter
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.responses.stored_response import StoredResponse
from orcastream.gateway.served_models import Found
from orcastream.gateway.service import Gateway


async def events(gateway: Gateway, request: Request) -> Response:
    """GET: the reply after `Last-Event-ID`, or from its start, whichever gateway accepted the request."""
    require_serving(gateway)
    found = await find_request(gateway, request)
    check_query(request, "include_usage")
    usage = UsageWanted(at_end=read_flag(request, "include_usage"))
    last_event_id = single_header(request.headers, "Last-Event-ID")
    resume = Delivered.parse(last_event_id) if last_event_id else None
    if RESPONSES.owns(found.request_id):
        response = await StoredResponse.read(found) or StoredResponse.unknown(found)
        writer: ReplyWriter = ResponseWriter(response.builder(), Behind(delivered=resume), id_lines=True)
    else:
        writer = _chunk_writer(found, usage, resume)
    log_event("resumed", request=found.request_id, behind=last_event_id)
    return read_on(request, found, writer)


def _chunk_writer(found: Found, usage: UsageWanted, resume: Delivered | None) -> EventWriter:
    model, origin = found.model, found.origin
    shape = AnswerShape.of(found.shown_id, found.shown_model, origin.ref, model.redis.now_ms, usage)
    text = ReplyText(model.tokenizer, resume, split=found.request_id if shape.endpoint.splits else None)
    return EventWriter(shape, text, resumed=resume is not None, id_lines=True)


async def cancel(gateway: Gateway, request: Request) -> Response:
    """DELETE: cancel the request. `cancelled` is false if it had already ended."""
    found = await find_request(gateway, request)
    check_query(request)
    cancelled = await cancel_found(found)
    return JSONResponse({"id": found.shown_id, "object": "request", "cancelled": cancelled})


async def cancel_found(found: Found) -> bool:
    """Cancel a request; return False if it had already ended."""
    request_id = found.request_id
    cancelled = await found.model.cancel(request_id)
    log_event("cancelled", request=request_id, why="asked for", ended_before=not cancelled)
    return cancelled
