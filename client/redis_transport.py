"""Transport over Redis: posts to the request queue and reads the reply log, as a gateway does."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from redis.exceptions import ResponseError

from orcastream.broker.address import RedisAddress
from orcastream.broker.cancelling import cancel_request
from orcastream.broker.connection import Connection
from orcastream.broker.durability import Durability
from orcastream.broker.ending import Ender
from orcastream.broker.errors import (
    PASSING,
    BrokerError,
    Closed,
    IdInUse,
    NotOnDisk,
    ReplyConflict,
    UnknownRequest,
    Unwritable,
    WrongTenant,
)
from orcastream.broker.errors import ReplyExpired as NotKept
from orcastream.broker.loss import Watch
from orcastream.broker.posting import counting_request, post
from orcastream.broker.presence import new_process_name
from orcastream.broker.reader import ReplyReader
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.subscription import Subscription, Update
from orcastream.client.entry import payload_of
from orcastream.client.errors import (
    CONFLICT,
    EXPIRED_REPLY,
    NOT_ENDED,
    UNREACHABLE,
    ClientError,
    Lost,
    Refused,
    Unavailable,
    closed,
    failure,
)
from orcastream.client.folded_answer import FoldedAnswer
from orcastream.client.request import Asked, Prompt
from orcastream.client.result import Result
from orcastream.client.transport import Accepted, Event
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys, check_id
from orcastream.schemas.request import GenerationRequest
from orcastream.text.tokenizer import Tokenizer

_LATE_S: Final = 10.0
"""Time after its deadline for a request to be ended by any process."""
_STOPPED_S: Final = 1.0
"""A timer later than this was held up, because this process was stopped: what came meanwhile has yet to be read."""
_TURN: Final = 32
"""Maximum number of updates taken at a time."""
_LOST_PAUSE_S: Final = 1.0
_PASSING: Final = PASSING | {"OOM", "MISCONF"}
"""Error codes that pass within a client's patience: someone may make room in the server's memory, or on its disk."""

T = TypeVar("T")


class RedisTransport:
    """See Transport. It is responsible for its requests: if Redis loses one, it queues the request again."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        namespace: str,
        tenant: str,
        tokenizer: Tokenizer | None,
        patience_s: float,
        retention_s: float,
        queue_lanes: int = 1,
    ) -> None:
        try:
            RedisAddress.parse(url)
        except ValueError as error:
            raise InvalidRequest("urls", url.rpartition("@")[2], str(error)) from None
        self._keys = Keys(model, namespace, queue_lanes)
        self._tenant = tenant
        self._tokenizer = tokenizer
        self._patience_s = patience_s
        self._retention_ms = int(retention_s * 1000)
        name = f"client-{new_process_name()}"
        self._redis = RedisLink(url, name)
        self._durability = Durability(url, self._keys, f"{name}-durable")
        self._reader = ReplyReader(url, self._keys, name, retention_ms=self._retention_ms)
        self._ender = Ender(self._keys, name, retention_ms=self._retention_ms)
        self._is_reading = False

    def request_id(self, prompt: Prompt, own: str | None) -> str:
        """See Transport: the caller's own id unchanged, or 128 random bits."""
        return uuid4().hex if own is None else check_id(own, "request_id")

    async def events(self, asked: Asked) -> AsyncGenerator[Event]:
        """See Transport."""
        request = await self._request(asked)
        answer = FoldedAnswer(asked.id, self._tokenizer)
        is_accepted = False
        while True:
            watch = await self._post(request, durable=asked.durable)
            if not is_accepted:
                is_accepted = True
                yield Accepted()
            try:
                async with self._reader.subscribe(watch) as subscription:
                    while True:
                        for update in await self._take(subscription, watch, request):
                            for event in answer.take(update):
                                yield event
                                if isinstance(event, Result):
                                    return
            except Lost:
                if self._redis.now_ms >= request.deadline_ms:
                    raise
                await asyncio.sleep(_LOST_PAUSE_S)

    async def cancel(self, request_id: str) -> bool:
        """See Transport."""
        keys, ender, retention_ms = self._keys, self._ender, self._retention_ms

        async def cancel(link: Connection) -> bool:
            now_ms = self._redis.now_ms
            return await cancel_request(link, keys, ender, request_id, now_ms=now_ms, retention_ms=retention_ms)

        return await self._patiently(cancel, request_id)

    async def close(self) -> None:
        """See Transport."""
        await self._redis.close()  # first, so that nothing more is posted
        await self._durability.close()
        await self._reader.close()

    async def _request(self, asked: Asked) -> GenerationRequest:
        """Return the entry; its deadline is on the server's clock."""
        try:
            payload = payload_of(asked, self._tenant, self._tokenizer)
        except InvalidRequest as error:
            raise _refused(error, asked.id) from None
        now_ms = await self._patiently(Connection.server_time_ms, asked.id)
        deadline_ms = now_ms + int(asked.timeout_s * 1000)
        return GenerationRequest(asked.id, payload, deadline_ms, asked.priority)

    async def _post(self, request: GenerationRequest, *, durable: bool) -> Watch:
        keys, retention_ms = self._keys, self._retention_ms

        async def enqueue(link: Connection) -> Watch:
            enqueuing = partial(post, keys=keys, request=request, terms=None, retention_ms=retention_ms)
            if durable:
                enqueued = await self._durability.enqueue(enqueuing, request.id, link)
            else:
                enqueued = await enqueuing(link)
            counting = await counting_request(link, keys, request, enqueued, self._redis.now_ms)
            return Watch(request.id, self._tenant, enqueued.entry, counting.request)

        watch = await self._patiently(enqueue, request.id)
        if not self._is_reading:
            self._is_reading = True
            await self._reader.start()
        return watch

    async def _take(self, subscription: Subscription, watch: Watch, request: GenerationRequest) -> list[Update]:
        """Return the next updates; none if this process was stopped while it waited for them."""
        deadline_ms = (watch.request or request).deadline_ms
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(0.0, (deadline_ms - self._redis.now_ms) / 1000) + _LATE_S
        try:
            async with asyncio.timeout_at(give_up_at):
                return await subscription.take(_TURN)
        except TimeoutError:
            if loop.time() - give_up_at > _STOPPED_S:
                return []
            message = "The deadline passed, and it is unknown how the request ended."
            raise Unavailable(message, code=NOT_ENDED, request_id=request.id) from None
        except StopAsyncIteration:
            raise closed(request.id) from None
        except BrokerError as error:
            raise _told(error, request.id) from None

    async def _patiently(self, action: Callable[[Connection], Awaitable[T]], request_id: str) -> T:
        try:
            return await self._redis.patiently(action, time.monotonic() + self._patience_s, _PASSING)
        except InvalidRequest as error:
            raise _refused(error, request_id) from None
        except (BrokerError, ResponseError) as error:
            raise _told(error, request_id) from None


_CODES: Final[dict[type[BrokerError], str]] = {
    IdInUse: "id_in_use",
    NotKept: EXPIRED_REPLY,
    ReplyConflict: CONFLICT,
    UnknownRequest: EXPIRED_REPLY,
    WrongTenant: "id_in_use",
}
"""Errors that are final for a request; all others concern Redis."""


def _told(error: BrokerError | ResponseError, request_id: str) -> ClientError:
    if isinstance(error, BrokerError) and type(error) in _CODES:
        return failure(_CODES[type(error)], str(error), request_id=request_id)
    if isinstance(error, Closed):
        return closed(request_id)
    if isinstance(error, NotOnDisk):
        message = f"The request is queued, but Redis does not confirm that it is on disk: {error}"
        return Unavailable(message, code="not_on_disk", request_id=request_id)
    answers = isinstance(error, ResponseError | Unwritable)
    message = f"Redis {'takes no requests now' if answers else 'cannot be reached'}: {error}"
    return Unavailable(message, code=UNREACHABLE, request_id=request_id)


def _refused(error: InvalidRequest, request_id: str) -> Refused:
    return Refused(str(error), code=str(error.code), request_id=request_id, field=error.field)
