"""/v1/batches: many requests submitted as a file, answered within a day."""

from typing import Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.broker.files.file_store import UnreadableFile
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.batches.batch_line import PRIORITY_CLASS
from orcastream.gateway.batches.batch_object import batch_object, has_ended, status_of
from orcastream.gateway.batches.batch_request import BatchRequest, BatchTerms, endpoint_at
from orcastream.gateway.batches.batches import Batch, Batches
from orcastream.gateway.batches.timed_id import TIMED_ID
from orcastream.gateway.batches.unreadable_batches import UnreadableBatch
from orcastream.gateway.batches.upload import PURPOSE
from orcastream.gateway.errors import batch_ended, batch_not_found, batch_unreadable, file_not_found, file_unreadable
from orcastream.gateway.listing import PageQuery, list_object
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint

_DEFAULT, _MOST = 20, 100
_MAX_VALUES: Final = 1000


async def create(batches: Batches, request: Request) -> Response:
    """POST: create a batch and return it."""
    grant = batches.grant_of(request)
    check_query(request)
    async with batches.bodies.body_of(request) as raw:
        asked = _read(raw)
    endpoint_at(asked.endpoint)
    grant.check_class(PRIORITY_CLASS)
    await _check_input(batches, asked, grant)
    return JSONResponse(_told(await batches.create(_terms(batches, asked, grant))))


async def list_batches(batches: Batches, request: Request) -> Response:
    """GET: the batches of a tenant, the newest first, without unreadable ones."""
    tenant = batches.grant_of(request).tenant
    check_query(request, "after", "limit")
    query = PageQuery.read(request, default=_DEFAULT, most=_MOST)
    ids = query.behind(await batches.list_ids(tenant), str, TIMED_ID)
    found: list[Batch] = []
    while ids and len(found) <= query.limit:
        seen, ids = ids[: query.limit + 1], ids[query.limit + 1 :]
        found += [batch for batch in await batches.see(seen, tenant) if isinstance(batch, Batch)]
    page = query.page(found)
    return JSONResponse(list_object([_told(batch) for batch in page.items], has_more=page.has_more))


async def retrieve(batches: Batches, request: Request) -> Response:
    """GET of one; ApiError 409 if it is unreadable."""
    return JSONResponse(_told(await _found(batches, request)))


async def cancel(batches: Batches, request: Request) -> Response:
    """POST: answer no more of its requests; ApiError 409 if it has ended or is unreadable."""
    batch = await _found(batches, request)
    if has_ended(batch.progress):
        raise batch_ended(status_of(batch.progress))
    await batch.job.cancel()
    log_event("batch cancelled", batch=batch.job.id)
    return JSONResponse(_told(await _found(batches, request)))


def _read(raw: bytes) -> BatchRequest:
    try:
        return BatchRequest.model_validate(read_json_object(raw, _MAX_VALUES))
    except ValidationError as error:
        raise first_complaint(error, "body") from None


async def _check_input(batches: Batches, asked: BatchRequest, grant: Grant) -> None:
    try:
        file = await batches.files.find(grant.tenant, asked.input_file_id)
    except UnreadableFile:
        raise file_unreadable(asked.input_file_id, "input_file_id") from None
    if file is None:
        raise file_not_found(asked.input_file_id, "input_file_id")
    if file.purpose != PURPOSE:
        raise InvalidRequest("input_file_id", asked.input_file_id, f"a file with the purpose {PURPOSE}")


def _terms(batches: Batches, asked: BatchRequest, grant: Grant) -> BatchTerms:
    most_s, expiry = batches.settings.files_retention_s, asked.output_expires_after
    kept_s = most_s if expiry is None else expiry.within(most_s, "output_expires_after.seconds")
    return BatchTerms(asked=asked, grant=grant, kept_s=kept_s)


async def _found(batches: Batches, request: Request) -> Batch:
    batch_id = request.path_params["batch_id"]
    tenant = batches.grant_of(request).tenant
    check_query(request)
    try:
        batch = await batches.find(batch_id, tenant)
    except UnreadableBatch:
        if await batches.is_listed(batch_id, tenant):
            raise batch_unreadable(batch_id) from None
        batch = None
    if batch is None:
        raise batch_not_found(batch_id)
    await batches.keep_open(batch)
    return batch


def _told(batch: Batch) -> dict[str, Any]:
    return batch_object(batch.job.id, batch.order, batch.terms, batch.progress)
