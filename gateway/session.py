"""One client reading one reply: from the moment it is there until it has everything or is gone."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from broker.attendance import Reading
from broker.entry import EntryRef
from broker.loss import Watch
from broker.subscription import Update
from gateway.delivered import Delivered
from gateway.errors import ApiError
from gateway.follow import Following
from gateway.gaps import Gaps
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
    """Counts as a reader from its making to `close`, which has to be called."""

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
        """`accepted`: this gateway put `request` into the queue for this client, and again should Redis lose it."""
        self._gateway = gateway
        self.request_id = request_id
        self._telemetry = telemetry
        self._has_ended = False
        stands_for_client = accepted and request is not None and request.payload.on_disconnect == "cancel"
        gateway.readers.attach(request_id, accepted=stands_for_client)
        self._deadline_ms = request.deadline_ms if request is not None else gateway.redis.now_ms
        self._watch = Watch(request_id, tenant, ref, request if accepted else None)
        created = int(ref.entry_id.partition("-")[0]) // 1000 if ref is not None else gateway.redis.now_ms // 1000
        self.shape = Shape(request_id, gateway.settings.served_name, created, include_usage)
        self.text = ReplyText(gateway.tokenizer, resume)
        self._gaps = Gaps(gateway.metrics.gaps)

    async def updates(self) -> AsyncGenerator[list[Update]]:
        """The reply's updates up to the terminal one, as many at a time as are there; none in silence."""
        left_s = (self._deadline_ms - self._gateway.redis.now_ms) / 1000
        give_up_at = asyncio.get_running_loop().time() + left_s + _LATE_S
        keep_alive_s = self._gateway.settings.keep_alive_s
        ending = self._gateway.ending
        with self._gateway.metrics.stream():
            async with (
                self._gateway.reader.subscribe(self._watch) as subscription,
                Following(subscription, ending, keep_alive_s=keep_alive_s, give_up_at=give_up_at) as following,
            ):
                has_ended = False
                while not has_ended:
                    updates = await following.take()
                    self._gaps.took(updates, following.taken_at)
                    for update in updates:
                        self._took(update)
                    has_ended = bool(updates) and updates[-1].terminal is not None
                    yield updates

    def _took(self, update: Update) -> None:
        if update.terminal is not None:
            self._has_ended = True
            tokens = update.terminal.usage.completion_tokens
            log_event("ended", request=self.request_id, why=update.terminal.error, tokens=tokens)
        self._telemetry.updated(update)

    def failed(self, error: ApiError) -> None:
        """The client is told of `error` instead of the rest of the reply."""
        self._telemetry.broke_off(error)

    async def close(self, *, left: bool) -> None:
        """The client has everything, or was told why not, or it has `left`."""
        if left:
            self._telemetry.left()
        if self._has_ended:
            self._gateway.readers.detach(self.request_id, Reading.ENDED)
            return
        if self._watch.request is not None:
            self._gateway.unattended.add(self._watch)
        if self._gateway.stopping:
            self._gateway.readers.detach(self.request_id, Reading.STOPPED)
        else:
            self._gateway.readers.detach(self.request_id, Reading.LEFT)
            self._gateway.departures.left(self.request_id)
