"""/v1/files: the files that batches read and write."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import ResponseError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from orcastream.broker.errors import BrokerError
from orcastream.broker.files.file_store import FileLost, FilesFull, UnreadableFile
from orcastream.broker.files.stored_file import StoredFile
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.batches.batch_run import OUTPUT_PURPOSE
from orcastream.gateway.batches.batches import Batches
from orcastream.gateway.batches.timed_id import TIMED_ID
from orcastream.gateway.batches.upload import HELD_BYTES, PURPOSE, Upload
from orcastream.gateway.errors import file_lost_meanwhile, file_not_found, file_unreadable, files_full
from orcastream.gateway.http.body_memory import check_encoding
from orcastream.gateway.http.connection import CUT
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.gateway.listing import PageQuery, list_object
from orcastream.gateway.log import log_event
from orcastream.schemas.errors import InvalidRequest

_MOST: Final = 10_000
_BYTES: Final = "application/octet-stream"


async def create(batches: Batches, request: Request) -> Response:
    """POST: a form with `file` and `purpose`, passed on to Redis as it arrives."""
    tenant = batches.grant_of(request).tenant
    check_query(request)
    upload = Upload(batches.files, tenant, batches.settings)
    check_encoding(request.headers)
    with batches.bodies.holding(HELD_BYTES):
        try:
            file = await upload.receive(request, batches.now_ms)
        except FilesFull as error:
            raise files_full(error) from None
        except FileLost:
            raise file_lost_meanwhile() from None
    log_event("file taken", file=file.id, tenant=tenant, bytes=file.size_bytes)
    return JSONResponse(file_object(file))


async def list_files(batches: Batches, request: Request) -> Response:
    """GET: the readable files of a tenant, the newest first unless `order` says otherwise."""
    tenant = batches.grant_of(request).tenant
    check_query(request, "after", "limit", "order", "purpose")
    query, purpose = PageQuery.read(request, default=_MOST, most=_MOST), request.query_params.get("purpose")
    if purpose not in (None, PURPOSE, OUTPUT_PURPOSE):
        raise InvalidRequest("purpose", without_keys(purpose), f"{PURPOSE}, {OUTPUT_PURPOSE}")
    files = [file for file in await batches.files.list(tenant) if purpose in (None, file.purpose)]
    page = query.page(query.behind(files, lambda file: file.id, TIMED_ID))
    return JSONResponse(list_object([file_object(file) for file in page.items], has_more=page.has_more))


async def retrieve(batches: Batches, request: Request) -> Response:
    """GET of one."""
    file = await _found(batches, request)
    return JSONResponse(file_object(file))


async def content(batches: Batches, request: Request) -> Response:
    """GET: the bytes of a file."""
    file = await _found(batches, request)
    pieces = batches.files.content(file)
    try:
        first = await anext(pieces, b"")
    except FileLost:
        raise file_not_found(file.id) from None
    headers = {"Content-Length": str(file.size_bytes)}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=_BYTES)
    return StreamingResponse(_joined(first, pieces, request), media_type=_BYTES, headers=headers)


async def delete(batches: Batches, request: Request) -> Response:
    """DELETE; unreadable files can be deleted, too."""
    tenant, file_id = _asked(batches, request)
    with suppress(UnreadableFile):  # a file need not be readable to be deleted
        if await batches.files.find(tenant, file_id) is None:
            raise file_not_found(file_id)
    await batches.files.delete(tenant, file_id)
    log_event("file deleted", file=file_id, tenant=tenant)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


def file_object(file: StoredFile) -> dict[str, Any]:
    """Return a file as OpenAI writes it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _asked(batches: Batches, request: Request) -> tuple[str, str]:
    """Return the tenant, and the id in the path."""
    tenant = batches.grant_of(request).tenant
    check_query(request)
    return tenant, request.path_params["file_id"]


async def _found(batches: Batches, request: Request) -> StoredFile:
    """Return the file that the path names.

    Raises ApiError 404 if its tenant has no such file, 409 if it is unreadable.
    """
    tenant, file_id = _asked(batches, request)
    try:
        file = await batches.files.find(tenant, file_id)
    except UnreadableFile:
        raise file_unreadable(file_id) from None
    if file is None:
        raise file_not_found(file_id)
    return file


async def _joined(first: bytes, rest: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
    """Yield the content; if the rest cannot be read, close the connection: the client sees that bytes are missing."""
    yield first
    try:
        async for piece in rest:
            yield piece
    except (BrokerError, ResponseError) as error:
        log_event("download broken off", level=logging.WARNING, file=request.path_params["file_id"], why=error)
        request.scope[CUT]()
