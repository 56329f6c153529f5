"""One gateway: its parts, put together from the settings, and their life."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from redis.exceptions import ResponseError

from broker.attendance import Attendance
from broker.connection import Connection
from broker.durability import Durability
from broker.ending import Ender
from broker.errors import BrokerError, LinkLost, NotAdmitted, NotOnDisk, Unwritable
from broker.loss import LossCheck
from broker.posting import post
from broker.presence import new_process_name
from broker.queue import Enqueued
from broker.queue_state import read_queue_state
from broker.reader import ReplyReader
from broker.redis_link import RedisLink
from broker.server_state import read_server_state
from broker.sweep import Sweeper
from broker.terms import Terms
from gateway.admission import Admission, Timeouts
from gateway.api_key import Grant
from gateway.departures import Departures
from gateway.errors import not_admitted, unavailable
from gateway.key_source import KeyFile, KeysInRedis, KeySource
from gateway.log import LOGGER, log_event
from gateway.metrics import GatewayMetrics
from gateway.offload import Offload
from gateway.readers import Readers
from gateway.request_telemetry import sending
from gateway.settings import GatewaySettings
from gateway.tenants import Tenants
from gateway.unattended import Unattended
from gateway.workers import Workers
from schemas.request import GenerationRequest
from telemetry.queue_gauges import INTERVAL_S
from telemetry.setup import Telemetry
from text.model_config import ModelConfig
from text.tokenizer import Tokenizer

Result = TypeVar("Result")


def new_gateway_name() -> str:
    """A name that no process had before, and that no worker has."""
    return f"gateway-{new_process_name()}"


class Gateway:
    """Everything that the routes share. Stateless: what it knows can be lost at any moment, and another goes on."""

    def __init__(
        self, settings: GatewaySettings, *, name: str | None = None, telemetry: Telemetry | None = None
    ) -> None:
        """Load the tokenizer and put the parts together; connects to nothing. ValueError where a setting is missing.

        `telemetry` is what was started in this process; none: nothing was.
        """
        if not settings.connection_url:
            raise ValueError(
                "redis_url: got none, allowed: a redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// "
                "URL"
            )
        if not settings.model:
            raise ValueError("model: got none, allowed: a directory or hub id")
        url = settings.connection_url
        self.settings = settings
        self.keys = settings.keys()
        self.name = name or new_gateway_name()
        self.telemetry = telemetry or Telemetry()
        self.metrics = GatewayMetrics(settings.served_name)
        observer = self.metrics.redis if self.telemetry.on else None
        self.started_at = int(time.time())
        self.tokenizer = Tokenizer.load(settings.model)
        config = ModelConfig.load(settings.model, max_model_len=settings.max_model_len)
        self.admission = Admission(
            self.tokenizer,
            config.limits,
            settings.served_name,
            Timeouts(settings.default_timeout_s, settings.max_timeout_s),
        )
        self.offload = Offload()
        self.redis = RedisLink(url, self.name, observer)
        self.durability = Durability(url, self.keys, f"{self.name}-durable", observer)
        self.tenants = Tenants(settings.api_keys, self._key_source())
        self.reader = ReplyReader(
            url,
            self.keys,
            self.name,
            retention_ms=settings.retention_ms,
            loss_check_s=settings.loss_check_s,
            observer=observer,
            on_end=self.metrics.ended,
        )
        lease_ms, grace_ms = int(settings.gateway_lease_s * 1000), int(settings.disconnect_grace_s * 1000)
        attendance = Attendance(self.keys, self.name, lease_ms=lease_ms, grace_ms=grace_ms)
        self.readers = Readers(self.redis, attendance)
        loss = LossCheck(self.keys, self.name, retention_ms=settings.retention_ms, on_end=self.metrics.ended)
        self.unattended = Unattended(self.redis, loss, settings.loss_check_s / 2)
        self.workers = Workers(self.redis, self.keys, config.limits)
        self.departures = Departures(self, attendance)
        self.ender = Ender(self.keys, self.name, retention_ms=settings.retention_ms, on_end=self.metrics.ended)
        self.stopping = False
        self._ready: bool | None = None
        self.ending = asyncio.Event()
        """Set when open streams are to end."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin reading, sweeping and being seen; does not wait for Redis."""
        await self.reader.start()
        works = [
            self.readers.keep_telling(),
            self.departures.keep_looking(),
            self._keep_sweeping(),
            self.unattended.keep_checking(),
            self.tenants.keep_fresh(self.settings.api_keys_reload_s),
        ]
        if self.telemetry.on:
            works.append(self._keep_gauging())
        self._tasks = [asyncio.create_task(work) for work in works]
        log_event("serving", level=logging.INFO, gateway=self.name, model=self.settings.served_name)

    def _key_source(self) -> KeySource | None:
        if self.settings.api_keys_file is not None:
            return KeyFile(self.settings.api_keys_file)
        return KeysInRedis(self.redis, self.keys) if self.settings.api_keys_in_redis else None

    def begin_stop(self) -> None:
        """Take no new requests; open streams get `shutdown_grace_s` to end by themselves."""
        if not self.stopping:
            self.stopping = True
            log_event("stopping", level=logging.INFO, gateway=self.name)
            asyncio.get_running_loop().call_later(self.settings.shutdown_grace_s, self.ending.set)

    async def close(self) -> None:
        """End everything; cancels no request."""
        self.stopping = True
        self.ending.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.offload.close()
        await self.readers.tell_last()
        await self.reader.close()
        await self.durability.close()
        await self.redis.close()
        log_event("stopped", level=logging.INFO, gateway=self.name)

    def told_ready(self, why_not: str | None) -> None:
        """Somebody asked whether this gateway is ready; one line where the answer is another than before."""
        ready = why_not is None
        if ready is not self._ready and not self.stopping:
            level = logging.INFO if ready else logging.WARNING
            log_event("ready" if ready else "not ready", level=level, gateway=self.name, why=why_not)
        self._ready = ready

    async def require_worker(self) -> None:
        """ApiError 503 while nobody can answer."""
        if self.stopping:
            raise unavailable("This gateway is stopping.", "gateway_stopping")
        alive = await self.patiently(lambda _: self.workers.alive())
        if not alive and self.settings.require_worker:
            raise unavailable(f"No worker of the model {self.settings.served_name!r} lives.", "no_worker")

    async def enqueue(self, request: GenerationRequest, grant: Grant, *, durable: bool = False) -> Enqueued:
        """Put the request into the queue once, however often Redis breaks off. Raises ApiError, InvalidRequest.

        One that was there and ended as lost is put there anew. `grant` is what its sender may do. With `durable` it is
        on disk when this returns.
        """
        action = partial(self._enqueue, request, self._terms(grant))
        if durable:
            action = partial(self.durability.enqueue, action, request.id)
        try:
            return await self.patiently(action)
        except NotAdmitted as error:
            raise not_admitted(error) from None

    async def _enqueue(self, request: GenerationRequest, terms: Terms, link: Connection) -> Enqueued:
        return await post(link, self.keys, request, terms=terms, retention_ms=self.settings.retention_ms)

    def _terms(self, grant: Grant) -> Terms:
        settings = self.settings
        return Terms(
            max_requests=settings.max_queue_depth,
            max_tokens=settings.max_queue_tokens,
            max_wait_ms=None if settings.max_wait_s is None else int(settings.max_wait_s * 1000),
            max_wait_share=settings.max_wait_share,
            requests_per_minute=grant.requests_per_minute,
            max_concurrency=grant.max_concurrency,
        )

    async def send(
        self, request: GenerationRequest, grant: Grant, *, durable: bool = False
    ) -> tuple[GenerationRequest, Enqueued]:
        """Enqueue the request under a span of its own; the request as it travels. Raises ApiError."""
        with sending(request, self.keys, self.name) as send:
            enqueued = await self.enqueue(send.request, grant, durable=durable)
            send.sent(enqueued)
            return send.request, enqueued

    async def patiently(self, action: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Carry out what may be carried out twice, and again while Redis is away, for as long as a client can wait."""
        try:
            return await self.redis.patiently(action, time.monotonic() + self.settings.redis_patience_s)
        except LinkLost as error:
            raise unavailable(f"Redis cannot be reached: {error}", "redis_unavailable") from None
        except (ResponseError, Unwritable) as error:
            raise unavailable(f"Redis takes no requests now: {error}", "redis_unavailable") from None
        except NotOnDisk as error:
            raise unavailable(
                f"The request waits, but Redis does not say that it is on disk: {error}", "not_on_disk"
            ) from None

    async def _keep_sweeping(self) -> None:
        """End requests whose deadline passed, for ever; workers do the same."""
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
            link, self.keys, self.name, retention_ms=self.settings.retention_ms, on_end=self.metrics.ended
        )
        while True:
            for ref in (await sweeper.step()).expired:
                log_event("expired", entry=ref)
            await asyncio.sleep(self.settings.sweep_s)

    async def _keep_gauging(self) -> None:
        """Look at the queue and its server now and then, as long as anybody collects metrics."""
        while True:
            if self.metrics.queue.wanted:
                try:
                    link = await self.redis.get()
                    state = await read_queue_state(link, self.keys)
                    self.metrics.queue.gathered(state.lengths, state.ages_s, state.workers)
                    self.metrics.server_state(await read_server_state(await link.link_for(self.keys.control)))
                except (BrokerError, ResponseError) as error:
                    log_event("queue not looked at", why=error)
                except Exception:
                    LOGGER.exception("looking at the queue failed")
            await asyncio.sleep(INTERVAL_S)
