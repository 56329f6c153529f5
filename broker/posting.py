"""Posts a request under an id that may have been posted before: of all requests with one id, the first counts."""

from dataclasses import dataclass

from orcastream.broker.connection import Connection
from orcastream.broker.errors import IdInUse, ReplyExpired
from orcastream.broker.origin import find_origin
from orcastream.broker.queue import Enqueued, RequestQueue
from orcastream.broker.terms import Terms
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Counting:
    """Of all requests with one id, the one that counts.

    `request` is None if its entry is gone, `num_choices` if all of it is.
    """

    request: GenerationRequest | None
    num_choices: int | None


async def post(
    link: Connection, keys: Keys, request: GenerationRequest, *, terms: Terms | None, retention_ms: int
) -> Enqueued:
    """Put the request into the queue once; a request that ended as lost is put there again.

    May be repeated. Raises as `RequestQueue.enqueue`.
    """
    queue = RequestQueue(link, keys)
    enqueued = await queue.enqueue(request, terms=terms, retention_ms=retention_ms)
    if enqueued.outcome != ErrorCode.LOST or enqueued.tenant != request.payload.tenant:
        return enqueued
    await queue.forget_lost(request.id)
    return await queue.enqueue(request, terms=terms, retention_ms=retention_ms, replaces=enqueued.entry)


async def counting_request(
    link: Connection, keys: Keys, request: GenerationRequest, enqueued: Enqueued, now_ms: int
) -> Counting:
    """Return the first of two requests with one id, whose tenant owns the id.

    That may be this request itself, if the reply to an earlier attempt was lost. Raises IdInUse, ReplyExpired,
    LinkLost.
    """
    if not enqueued.duplicate:
        return Counting(request, request.payload.n)
    origin = await find_origin(link, keys, request.id, now_ms)
    tenant = enqueued.tenant if origin is None else origin.tenant
    if tenant not in (None, request.payload.tenant):
        raise IdInUse(request.id)
    if origin is None and enqueued.outcome is not None:
        raise ReplyExpired(request.id, enqueued.outcome)
    return Counting(None, None) if origin is None else Counting(origin.request, origin.num_choices)
