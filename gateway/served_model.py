"""One model that a gateway serves: its queue, tokenizer and limits, and the tasks that look after its requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from redis.exceptions import ResponseError

from orcastream.broker.attendance import Attendance
from orcastream.broker.cancelling import cancel_request
from orcastream.broker.connection import Connection
from orcastream.broker.durability import Durability
from orcastream.broker.ending import Ender
from orcastream.broker.errors import BrokerError, LinkLost, NotAdmitted, NotOnDisk, Refusal, Unwritable
from orcastream.broker.kept_responses import KeptResponses
from orcastream.broker.link import LinkObserver
from orcastream.broker.loss import LossCheck
from orcastream.broker.origin import Origin, find_origin
from orcastream.broker.posting import post
from orcastream.broker.queue import Enqueued
from orcastream.broker.queue_state import read_queue_state
from orcastream.broker.reader import ReplyReader
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.sweep import Sweeper
from orcastream.broker.terms import Terms
from orcastream.gateway.admission.answer_formats import AnswerFormats
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.admission.request_admission import RequestAdmission, Timeouts
from orcastream.gateway.admission.request_ids import RequestIds
from orcastream.gateway.errors import gateway_stopping, no_worker, not_admitted, unavailable
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.metrics import ModelMetrics
from orcastream.gateway.model_source import ModelSource
from orcastream.gateway.replies.disconnects import Disconnects, DisconnectTimes
from orcastream.gateway.replies.readers import Readers
from orcastream.gateway.replies.unattended import Unattended
from orcastream.gateway.request_telemetry import sending
from orcastream.gateway.settings import GatewaySettings
from orcastream.gateway.shutdown import Shutdown, Stopping
from orcastream.gateway.workers import Workers
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest
from orcastream.text.model_config import ModelConfig
from orcastream.text.tokenizer import Tokenizer

Result = TypeVar("Result")

_CLEANUPS_S: Final = (0.02, 0.08)
"""A client may ask again as soon as it has its answer, a moment before that request is removed from the queue: so a
tenant at its limit of concurrent requests gets these pauses, and is refused after the last.
"""


def _part_of(bound: int | None, share: float) -> int | None:
    """Return a tenant's part of a queue bound, at least 1; None if it may use the whole queue or there is no bound."""
    return None if bound is None or share == 1 else max(1, int(bound * share))


class ServedModel:
    """One model of a gateway. Stateless: all its state may be lost at any moment, and another gateway continues."""

    def __init__(
        self,
        source: ModelSource,
        settings: GatewaySettings,
        redis: RedisLink,
        shutdown: Shutdown,
        *,
        gateway: str,
        observer: LinkObserver | None,
    ) -> None:
        """Load the tokenizer and put the parts together; does not connect.

        `redis` is the gateway's own link, `gateway` its name. Raises ModelFilesError if the model cannot be served.
        """
        self.name = source.name
        self.settings = settings
        self.redis = redis
        self.shutdown = shutdown
        self._gateway = gateway
        self.keys = settings.keys_of(source.name)
        self.tokenizer = Tokenizer.load(source.path)
        limits = ModelConfig.load(source.path, max_model_len=source.max_model_len).limits
        timeouts = Timeouts(settings.default_timeout_s, settings.max_timeout_s)
        self.ids = RequestIds(source.name, is_default=source.is_default)
        formats = AnswerFormats(self.tokenizer, settings.tool_parser, settings.reasoning_parser)
        self.admission = RequestAdmission(self.tokenizer, timeouts, self.ids, formats)
        self.responses = KeptResponses(self.keys, settings.max_kept_bytes)
        self.workers = Workers(redis, self.keys, limits, settings.redis_patience_s)
        self.metrics = ModelMetrics(source.name)
        self._connect(str(settings.connection_url), observer)
        self._tasks: list[asyncio.Task[None]] = []

    def _connect(self, url: str, observer: LinkObserver | None) -> None:
        """Create the parts that read and write in Redis."""
        settings, keys, name, on_end = self.settings, self.keys, self._gateway, self.metrics.ended
        retention_ms = settings.retention_ms
        self.durability = Durability(url, keys, f"{name}-durable", observer)
        self.reader = ReplyReader(
            url,
            keys,
            name,
            retention_ms=retention_ms,
            loss_check_s=settings.loss_check_s,
            observer=observer,
            on_end=on_end,
        )
        self.ender = Ender(keys, name, retention_ms=retention_ms, on_end=on_end)
        loss = LossCheck(keys, name, retention_ms=retention_ms, unread=True, on_end=on_end)
        self.unattended = Unattended(self.redis, loss, settings.loss_check_s / 2)
        times = DisconnectTimes(settings.disconnect_grace_s, settings.gateway_lease_s, retention_ms)
        lease_ms, grace_ms = int(times.lease_s * 1000), int(times.grace_s * 1000)
        attendance = Attendance(keys, name, lease_ms=lease_ms, grace_ms=grace_ms)
        self.readers = Readers(self.redis, attendance)
        self.disconnects = Disconnects(self.redis, keys, attendance, self.readers, self.ender, times, self.shutdown)

    async def start(self) -> None:
        """Start reading, sweeping and attendance; does not wait for Redis."""
        await self.reader.start()
        works = (
            self.readers.keep_telling(),
            self.disconnects.keep_looking(),
            self._keep_sweeping(),
            self.unattended.keep_checking(),
        )
        self._tasks = [asyncio.create_task(work) for work in works]

    async def close(self) -> None:
        """Stop everything; cancels no request."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.readers.tell_last()
        await self.reader.close()
        await self.durability.close()

    async def require_worker(self) -> ModelLimits:
        """Return the limits that the live workers report. Raises ApiError 503 while no worker can answer."""
        if self.shutdown.stopping:
            raise gateway_stopping()
        wanted = self.settings.require_worker
        alive = await self.patiently(lambda _: self.workers.returned() if wanted else self.workers.alive())
        if wanted and not alive:
            raise no_worker(self.name)
        return self.workers.limits

    async def send(
        self, request: GenerationRequest, grant: Grant, *, durable: bool = False
    ) -> tuple[GenerationRequest, Enqueued]:
        """Enqueue the request under its own span; return the request as enqueued, and its entry. Raises ApiError."""
        with sending(request, self.keys, self._gateway) as send:
            enqueued = await self.enqueue(send.request, grant, durable=durable)
            send.sent(enqueued)
            return send.request, enqueued

    async def enqueue(self, request: GenerationRequest, grant: Grant, *, durable: bool = False) -> Enqueued:
        """Put the request into the queue once, however often the connection breaks. Raises ApiError, InvalidRequest.

        A request with this id that ended as lost is queued again. `grant` is what its sender may do. With `durable` the
        request is on disk when this returns.
        """
        action = partial(self._enqueue, request, self._terms(grant))
        if durable:
            action = partial(self.durability.enqueue, action, request.id)
        try:
            return await self.patiently(action)
        except NotAdmitted as error:
            raise not_admitted(error) from None

    async def _enqueue(self, request: GenerationRequest, terms: Terms, link: Connection) -> Enqueued:
        once = partial(post, link, self.keys, request, terms=terms, retention_ms=self.settings.retention_ms)
        for pause_s in _CLEANUPS_S:
            try:
                return await once()
            except NotAdmitted as error:
                if error.reason is not Refusal.CONCURRENCY:
                    raise
            await asyncio.sleep(pause_s)
        return await once()

    def _terms(self, grant: Grant) -> Terms:
        settings = self.settings
        share = grant.queue_share or settings.max_tenant_share
        return Terms(
            max_requests=settings.max_queue_depth,
            max_tokens=settings.max_queue_tokens,
            max_wait_ms=None if settings.max_wait_s is None else int(settings.max_wait_s * 1000),
            max_wait_share=settings.max_wait_share,
            requests_per_minute=grant.requests_per_minute,
            max_concurrency=grant.max_concurrency,
            tenant_requests=_part_of(settings.max_queue_depth, share),
            tenant_tokens=_part_of(settings.max_queue_tokens, share),
        )

    async def origin(self, request_id: str) -> Origin | None:
        """Return what Redis knows of a request of this model; None if nothing. Raises ApiError."""
        return await self.patiently(lambda link: find_origin(link, self.keys, request_id, self.redis.now_ms))

    async def cancel(self, request_id: str) -> bool:
        """Cancel a waiting or running request; return False if it has ended. Raises LinkLost, Unwritable."""
        link, retention_ms = await self.redis.get(), self.settings.retention_ms
        return await cancel_request(
            link, self.keys, self.ender, request_id, now_ms=self.redis.now_ms, retention_ms=retention_ms
        )

    async def patiently(self, action: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run an idempotent action, and repeat it while Redis is unavailable, for as long as a client can wait."""
        try:
            with self.shutdown.bounds():
                return await self.redis.patiently(action, time.monotonic() + self.settings.redis_patience_s)
        except Stopping:
            raise gateway_stopping() from None
        except LinkLost as error:
            raise unavailable(f"Redis cannot be reached: {error}", "redis_unavailable") from None
        except (ResponseError, Unwritable) as error:
            raise unavailable(f"Redis takes no requests now: {error}", "redis_unavailable") from None
        except NotOnDisk as error:
            raise unavailable(
                f"The request is queued, but Redis does not confirm that it is on disk: {error}", "not_on_disk"
            ) from None

    async def look_at_the_queue(self, link: Connection) -> None:
        """Read the values of the queue's gauges. Raises LinkLost, ResponseError."""
        state = await read_queue_state(link, self.keys)
        self.metrics.queue.gathered(state.lengths, state.ages_s, state.workers)

    async def _keep_sweeping(self) -> None:
        """End requests past their deadline, forever; workers do the same."""
        while True:
            try:
                await self._sweep(await self.redis.get())
            except (BrokerError, ResponseError) as error:
                log_event("sweep interrupted", why=error)
            except Exception:
                LOGGER.exception("the sweep failed")
            await asyncio.sleep(self.settings.sweep_s)

    async def _sweep(self, link: Connection) -> None:
        sweeper = Sweeper(
            link,
            self.keys,
            self._gateway,
            retention_ms=self.settings.retention_ms,
            on_end=self.metrics.ended,
            on_set_aside=self.metrics.set_aside,
        )
        while True:
            for ref in (await sweeper.step()).expired:
                log_event("expired", entry=ref)
            await asyncio.sleep(self.settings.sweep_s)
