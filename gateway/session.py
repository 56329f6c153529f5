"""One client reading one reply: from the moment it is there until it has everything or is gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from broker.entry import EntryRef
from broker.errors import BrokerError
from broker.loss import Watch
from broker.subscription import Update
from gateway.delivered import Delivered
from gateway.errors import ApiError
from gateway.follow import follow
from gateway.log import log_event
from gateway.openai_shape import Shape
from gateway.reply_text import ReplyText
from gateway.request_telemetry import RequestTelemetry
from schemas.request import GenerationRequest

if TYPE_CHECKING:
    from gateway.service import Gateway

_LATE_S = 10.0
"""After its deadline a request is given this long to be ended by somebody."""


class Session:
    """`cancels`: whether the client's leaving cancels the request, as the request says."""

    def __init__(
        self,
        gateway: "Gateway",
        request_id: str,
        tenant: str,
        ref: EntryRef | None,
        *,
        request: GenerationRequest | None,
        accepted: bool,
        include_usage: bool,
        telemetry: RequestTelemetry,
        resume: Delivered | None = None,
    ) -> None:
        """`accepted`: this gateway put `request` into the queue, and does so again should Redis lose it."""
        self._gateway = gateway
        self.request_id = request_id
        self._telemetry = telemetry
        self.cancels = request is not None and request.payload.on_disconnect == "cancel"
        self._deadline_ms = request.deadline_ms if request is not None else gateway.redis.now_ms
        self._watch = Watch(request_id, tenant, ref, request if accepted else None)
        created = int(ref.entry_id.partition("-")[0]) // 1000 if ref is not None else gateway.redis.now_ms // 1000
        self.shape = Shape(request_id, gateway.settings.served_name, created, include_usage)
        self.text = ReplyText(gateway.tokenizer, resume)

    async def open(self) -> None:
        """Leave a mark in Redis that somebody reads; without one only this gateway knows."""
        ttl_ms = self._deadline_ms - self._gateway.redis.now_ms + self._gateway.settings.retention_ms
        try:
            await self._gateway.readers.attach(self.request_id, ttl_ms)
        except (BrokerError, ResponseError) as error:
            log_event("reader not marked", request=self.request_id, why=error)

    async def updates(self) -> AsyncGenerator[Update | None]:
        """The reply's updates; None in silence."""
        left_s = (self._deadline_ms - self._gateway.redis.now_ms) / 1000
        give_up_at = asyncio.get_running_loop().time() + left_s + _LATE_S
        keep_alive_s = self._gateway.settings.keep_alive_s
        with self._gateway.metrics.stream():
            async with self._gateway.reader.subscribe(self._watch) as subscription:
                updates = follow(subscription, self._gateway.ending, keep_alive_s=keep_alive_s, give_up_at=give_up_at)
                async with aclosing(updates):
                    async for update in updates:
                        if update is not None:
                            self._took(update)
                        yield update

    def _took(self, update: Update) -> None:
        if update.terminal is not None:
            tokens = update.terminal.usage.completion_tokens
            log_event("ended", request=self.request_id, why=update.terminal.error, tokens=tokens)
        self._telemetry.updated(update)

    def failed(self, error: ApiError) -> None:
        """The client is told of `error` instead of the rest of the reply."""
        self._telemetry.broke_off(error)

    async def close(self, *, left: bool) -> None:
        """The client has everything, or it has `left`."""
        if left:
            self._telemetry.left()
        if left and not self._gateway.stopping:
            self._gateway.departures.left(self.request_id, cancels=self.cancels)
            return
        with suppress(BrokerError, ResponseError):
            await self._gateway.readers.detach(self.request_id)
