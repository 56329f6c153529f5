"""/v1/responses/{id}: operations on a response by its id, at any gateway."""

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from orcastream.broker.errors import BrokerError
from orcastream.broker.loss import Watch
from orcastream.broker.queue import RequestQueue
from orcastream.gateway.admission.query import check_query, read_flag, read_number
from orcastream.gateway.errors import not_found
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.gateway.listing import PageQuery, list_object
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.responses.behind import Behind
from orcastream.gateway.openai.responses.options import check_included
from orcastream.gateway.openai.responses.writer import ResponseWriter
from orcastream.gateway.reading_on import find_request, read_on, require_serving
from orcastream.gateway.requests_api import cancel_found
from orcastream.gateway.responses.stored_response import StoredResponse
from orcastream.gateway.served_models import Found
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import InvalidRequest

_MAX_NUMBER: Final = 2**31 - 1
_MAX_ITEMS, _DEFAULT_ITEMS = 100, 20
_INCLUDE: Final = ("include", "include[]")
_CANCEL_S: Final = 5.0
"""A canceled request ends within an iteration; this is the maximum wait for that."""


async def retrieve(gateway: Gateway, request: Request) -> Response:
    """GET: the response as it is now; with `stream`, its events after `starting_after`."""
    check_query(request, "stream", "starting_after", "include_obfuscation", repeatable=_INCLUDE)
    _check_include(request)
    read_flag(request, "include_obfuscation")
    after = read_number(request, "starting_after", least=0, most=_MAX_NUMBER)
    is_stream = read_flag(request, "stream")
    if after is not None and not is_stream:
        raise InvalidRequest("starting_after", after, "only together with stream=true")
    stored = await _stored(gateway, request)
    if is_stream:
        require_serving(gateway)
        log_event("resumed", request=stored.found.request_id, behind=after)
        writer = ResponseWriter(stored.builder(), Behind(number=-1 if after is None else after))
        return read_on(request, stored.found, writer)
    return _told((await stored.now(gateway.offload)).response())


async def cancel(gateway: Gateway, request: Request) -> Response:
    """POST: cancel, and return the response as it is then; one that has ended stays as it is."""
    check_query(request)
    stored = await _stored(gateway, request)
    if await cancel_found(stored.found):
        await _end_of(stored.found)
    return _told((await stored.now(gateway.offload)).response())


async def delete(gateway: Gateway, request: Request) -> Response:
    """DELETE: cancel the request if it is running, and delete the response and, once it has ended, its reply."""
    check_query(request)
    stored = await _stored(gateway, request)
    model, request_id, tenant = stored.found.model, stored.found.request_id, stored.found.origin.tenant
    if await cancel_found(stored.found):
        await _end_of(stored.found)
    await model.patiently(lambda link: model.responses.delete(link, request_id, tenant))
    origin = await model.origin(request_id)
    if origin is not None and origin.request is None:  # the reply has ended, and no worker needs it for cleaning up
        await model.patiently(lambda link: RequestQueue(link, model.keys).forget_reply(request_id))
    log_event("deleted", request=request_id)
    return _told({"id": stored.id, "object": "response", "deleted": True})


async def input_items(gateway: Gateway, request: Request) -> Response:
    """GET: a page of the conversation up to the answer."""
    check_query(request, "after", "limit", "order", repeatable=_INCLUDE)
    _check_include(request)
    query = PageQuery.read(request, default=_DEFAULT_ITEMS, most=_MAX_ITEMS)
    stored = await _stored(gateway, request)
    page = query.page(query.behind(stored.record.items, lambda item: str(item["id"])))
    return _told(list_object(page.items, has_more=page.has_more))


async def _stored(gateway: Gateway, request: Request) -> StoredResponse:
    """Return the response that the path names. Raises ApiError 404 if this tenant has no such response."""
    found = await find_request(gateway, request)
    stored = await StoredResponse.read(found)
    if stored is None:
        raise not_found(request.path_params["request_id"])
    return stored


async def _end_of(found: Found) -> None:
    """Wait for the end of a reply, for at most `_CANCEL_S`."""
    watch = Watch(found.request_id, found.origin.tenant, found.origin.ref)
    with suppress(TimeoutError, BrokerError):
        async with asyncio.timeout(_CANCEL_S), found.model.reader.subscribe(watch) as updates:
            async for _ in updates:
                pass


def _check_include(request: Request) -> None:
    check_included(
        "include", [without_keys(value) for name in _INCLUDE for value in request.query_params.getlist(name)]
    )


def _told(body: dict[str, object]) -> Response:
    return Response(encoded(body), media_type="application/json")
