"""POST /v1/responses."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from orcastream.broker.loss import Watch
from orcastream.gateway.errors import ApiError, unavailable
from orcastream.gateway.generate import answer_whole
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.gateway.intake import Accepted, Received, accept, receive
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.endpoints import RESPONSES
from orcastream.gateway.openai.request import ApiRequest
from orcastream.gateway.openai.responses.builder import ResponseBuilder
from orcastream.gateway.openai.responses.item_kinds import REFERENCE
from orcastream.gateway.openai.responses.items import Item, ResponseInput, read_items, response_of
from orcastream.gateway.openai.responses.options import ResponseOptions
from orcastream.gateway.openai.responses.record import ResponseRecord, input_of, options_of
from orcastream.gateway.openai.responses.shape import Status
from orcastream.gateway.openai.responses.writer import ResponseWriter
from orcastream.gateway.replies.answer import stream
from orcastream.gateway.replies.event_writer import check
from orcastream.gateway.replies.reply_session import ReplySession
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.sse import EventStream
from orcastream.gateway.replies.turns import Turns
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.responses.stored_response import StoredResponse, read_record
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import InvalidRequest, shown

_MAX_REFERENCED: Final = 32
"""Stored responses that are read for the references of one request; the last one usually has all earlier items."""
_TURN_EVENTS: Final = 16
"""Events made in one turn of the event loop; a token with its log probabilities is one."""
_CONTINUABLE: Final = (Status.COMPLETED, Status.INCOMPLETE)


async def create(gateway: Gateway, request: Request) -> Response:
    """Admit, keep, enqueue, answer. Raises ApiError, InvalidRequest, BrokerError."""
    telemetry = RequestTelemetry()
    received = await receive(gateway, RESPONSES, request, partial(_with_stored, gateway))
    options = options_of(received.asked)
    record, accepted = await _accept(received, options, telemetry)
    shown = accepted.shown_id
    builder = ResponseBuilder(record.shape(shown), ReplyText(received.model.tokenizer, split=accepted.request.id))
    if options.stream:
        session = accepted.session()
        events = stream([(session.updates(), ResponseWriter(builder))], shown, session.failed)
        return EventStream(events, closed=session.close)
    if options.background:
        body = encoded(await _in_background(gateway, accepted, builder))
        return Response(body, media_type="application/json")
    session = accepted.session()
    return await answer_whole(_whole(session, builder), [session], request, shown)


async def _accept(
    received: Received, options: ResponseOptions, telemetry: RequestTelemetry
) -> tuple[ResponseRecord, Accepted]:
    """Queue the request; return it with its record. A repeated request gets the record of the first."""
    model, (request,) = received.model, received.requests
    shown = model.ids.shown(request.id, request.payload.tenant)
    record = ResponseRecord.of(received.asked, shown, received.shown_model, model.redis.now_ms // 1000)
    if options.store:
        request = replace(request, record=record.encode())
    accepted = await accept(model, request, options, received.grant, telemetry)
    if accepted.is_duplicate:
        return await _record_of_first(accepted, record, is_stored=options.store), accepted
    if options.store:
        expire_at_ms = request.deadline_ms + model.settings.retention_ms
        await model.patiently(lambda link: model.responses.count(link, request, expire_at_ms=expire_at_ms))
    return record, accepted


async def _record_of_first(accepted: Accepted, repeated: ResponseRecord, *, is_stored: bool) -> ResponseRecord:
    """Return the record of the first request with this id.

    If none exists, a body that asks to be stored cannot match it.
    """
    kept = await read_record(accepted.model, accepted.request.id)
    if kept is not None:
        return kept
    unknown = ResponseRecord.unknown(repeated.model, accepted.entry.order[0])
    return unknown if is_stored else replace(repeated, created=unknown.created)


async def _in_background(gateway: Gateway, accepted: Accepted, builder: ResponseBuilder) -> Json:
    """Return the response as it is now. This gateway is responsible for the request, although nobody reads it here."""
    if accepted.is_own:
        request = accepted.request
        accepted.model.unattended.add(Watch(request.id, accepted.tenant, accepted.entry, request))
    if not accepted.is_duplicate:
        return builder.response()
    found = await gateway.models.find(accepted.shown_id, accepted.tenant)
    if found is None:
        return builder.response()
    stored = await StoredResponse.read(found) or StoredResponse.unknown(found)
    return (await stored.now(gateway.offload)).response()


async def _whole(session: ReplySession, builder: ResponseBuilder) -> bytes:
    """Return the finished response as JSON. Raises ApiError if the request failed."""
    turns = Turns(_TURN_EVENTS)
    async with aclosing(session.updates()) as updates:
        async for ready in updates:
            for update in ready:
                for _ in builder.take(update):
                    if turns.is_over(1):
                        await asyncio.sleep(0)
                if update.terminal is not None:
                    check(update.terminal)
                    return encoded(builder.response())
    raise unavailable("The reply was interrupted.")


async def _with_stored(gateway: Gateway, asked: ApiRequest, tenant: str) -> ApiRequest:
    """Complete the conversation with what stored responses have of it. Raises ApiError 404, InvalidRequest."""
    return await _with_referenced(gateway, await _after_previous(gateway, asked, tenant), tenant)


async def _with_referenced(gateway: Gateway, asked: ApiRequest, tenant: str) -> ApiRequest:
    """Put the items of stored responses into the places of their references."""
    given = input_of(asked)
    if not given.references:
        return asked
    known = {item["id"]: item for item in given.items if "id" in item and item["type"] != REFERENCE}
    for _ in range(_MAX_REFERENCED):
        missing = [item_id for item_id in given.references if item_id not in known]
        if not missing:
            size = sum(len(item.get("arguments", "")) for item in known.values())
            return replace(asked, prompts=[await gateway.offload.run(size, partial(given.resolved, known))])
        found = await _items_beside(gateway, missing[-1], tenant)
        if missing[-1] not in found:
            raise _no_item(missing[-1])
        known |= found
    raise InvalidRequest("input", "references to items of more responses", f"of at most {_MAX_REFERENCED} responses")


async def _items_beside(gateway: Gateway, item_id: str, tenant: str) -> dict[str, Item]:
    """Return the conversation and the output of the stored response that named an item; empty if there is none."""
    response_id = response_of(item_id)
    found = None if response_id is None else await gateway.models.find(response_id, tenant)
    stored = None if found is None else await StoredResponse.read(found)
    if stored is None:
        return {}
    builder = await stored.now(gateway.offload)
    output = read_items("input", builder.output()) if builder.status in _CONTINUABLE else []
    return {item["id"]: item for item in (*stored.record.items, *output)}


async def _after_previous(gateway: Gateway, asked: ApiRequest, tenant: str) -> ApiRequest:
    """Continue the conversation of `previous_response_id`. Raises ApiError 404 if it is unknown, InvalidRequest."""
    previous_id = options_of(asked).previous_response_id
    if previous_id is None:
        return asked
    found = await gateway.models.find(previous_id, tenant)
    stored = None if found is None else await StoredResponse.read(found)
    if stored is None:
        raise _no_previous(previous_id)
    builder = await stored.now(gateway.offload)
    if builder.status not in _CONTINUABLE:
        allowed = f"one that is {Status.COMPLETED} or {Status.INCOMPLETE}"
        raise InvalidRequest("previous_response_id", f"{previous_id} ({builder.status})", allowed)
    earlier, output = stored.record.items, builder.output()
    size = sum(len(item.get("arguments", "")) for item in (*earlier, *output))
    read = partial(_going_on, input_of(asked), earlier, output)
    return replace(asked, prompts=[await gateway.offload.run(size, read)])


def _going_on(given: ResponseInput, earlier: Sequence[Item], output: Sequence[Json]) -> ResponseInput:
    """Return the input after an earlier conversation and its output, which is read as if the client had sent it."""
    return given.after([*earlier, *read_items("previous_response_id", output)])


def _no_item(item_id: str) -> ApiError:
    message = f"Item with id {shown(without_keys(item_id))} not found."
    return ApiError(404, message, param="input", code="item_not_found")


def _no_previous(response_id: str) -> ApiError:
    message = f"Previous response with id {response_id!r} not found."
    return ApiError(404, message, param="previous_response_id", code="previous_response_not_found")
