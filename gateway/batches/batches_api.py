"""/v1/batches: many requests handed over as a file, answered within a day."""

import asyncio
from typing import Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.batches.batch_line import PRIORITY_CLASS
from orcastream.gateway.batches.batch_object import batch_object, has_ended, status_of
from orcastream.gateway.batches.batch_request import BatchRequest, BatchTerms, endpoint_at
from orcastream.gateway.batches.batches import Batch, Batches
from orcastream.gateway.batches.listing import PageQuery, list_object
from orcastream.gateway.batches.upload import PURPOSE
from orcastream.gateway.errors import batch_ended, batch_not_found, file_not_found
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint

_DEFAULT, _MOST = 20, 100
_MAX_VALUES: Final = 1000


async def create(batches: Batches, request: Request) -> Response:
    """POST: the batch as it begins."""
    grant = batches.grant_of(request)
    check_query(request)
    async with batches.bodies.body_of(request) as raw:
        asked = _read(raw)
    endpoint_at(asked.endpoint)
    grant.check_class(PRIORITY_CLASS)
    await _check_input(batches, asked, grant)
    return JSONResponse(_told(await batches.create(_terms(batches, asked, grant))))


async def list_batches(batches: Batches, request: Request) -> Response:
    """GET: the batches of a tenant, the newest first."""
    tenant = batches.grant_of(request).tenant
    check_query(request, "after", "limit")
    query = PageQuery.read(request, default=_DEFAULT, most=_MOST)
    page = query.of(await batches.list_ids(tenant), str)
    found = await asyncio.gather(*(batches.find(batch_id, tenant) for batch_id in page.items))
    told = [_told(batch) for batch in found if batch is not None]
    return JSONResponse(list_object(told, has_more=page.has_more))


async def retrieve(batches: Batches, request: Request) -> Response:
    """GET of one."""
    return JSONResponse(_told(await _found(batches, request)))


async def cancel(batches: Batches, request: Request) -> Response:
    """POST: no more of its requests are answered; ApiError 409 where it has ended."""
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
    file = await batches.files.find(grant.tenant, asked.input_file_id)
    if file is None:
        raise file_not_found(asked.input_file_id, "input_file_id")
    if file.purpose != PURPOSE:
        raise InvalidRequest("input_file_id", asked.input_file_id, f"a file with the purpose {PURPOSE}")


def _terms(batches: Batches, asked: BatchRequest, grant: Grant) -> BatchTerms:
    most_s, expiry = batches.settings.files_retention_s, asked.output_expires_after
    return BatchTerms(asked, grant, most_s if expiry is None else expiry.within(most_s, "output_expires_after"))


async def _found(batches: Batches, request: Request) -> Batch:
    batch_id = request.path_params["batch_id"]
    tenant = batches.grant_of(request).tenant
    check_query(request)
    batch = await batches.find(batch_id, tenant)
    if batch is None:
        raise batch_not_found(batch_id)
    return batch


def _told(batch: Batch) -> dict[str, Any]:
    return batch_object(batch.job.id, batch.order, batch.terms, batch.progress)
