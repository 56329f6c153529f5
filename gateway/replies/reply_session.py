"""One client reading one reply, from its arrival until it has everything or has left."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from orcastream.broker.attendance import Reading
from orcastream.broker.entry import EntryRef
from orcastream.broker.loss import Watch
from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.log import log_event
from orcastream.gateway.replies.follow import Following
from orcastream.gateway.replies.token_gaps import TokenGaps
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.served_model import ServedModel
from orcastream.schemas.errors import without_values
from orcastream.schemas.request import GenerationRequest

Updates = AsyncGenerator[list[Update]]
"""A reply as it arrives: batches of available updates, an empty one in silence."""

_LATE_S = 10.0
"""Time after its deadline for a request to be ended by any process."""


class ReplySession:
    """Counts as a reader from its construction to `close`, which must be called."""

    def __init__(
        self,
        model: ServedModel,
        request_id: str,
        tenant: str,
        ref: EntryRef | None,
        *,
        request: GenerationRequest | None,
        accepted: bool,
        telemetry: RequestTelemetry,
    ) -> None:
        """`accepted`: this gateway queued `request` for this client, and queues it again if Redis loses it."""
        self.model = model
        self.request_id = request_id
        self._telemetry = telemetry
        self._has_ended = False
        stands_for_client = accepted and request is not None and request.payload.on_disconnect == "cancel"
        model.readers.attach(request_id, accepted=stands_for_client)
        self._deadline_ms = request.deadline_ms if request is not None else model.redis.now_ms
        self._watch = Watch(request_id, tenant, ref, request if accepted else None)
        self._gaps = TokenGaps(model.metrics.gaps)

    async def updates(self) -> Updates:
        """Yield the reply's updates up to the terminal one, as many as are available at a time; none in silence."""
        left_s = (self._deadline_ms - self.model.redis.now_ms) / 1000
        give_up_at = asyncio.get_running_loop().time() + left_s + _LATE_S
        keep_alive_s = self.model.settings.keep_alive_s
        ending = self.model.shutdown.ending
        with self.model.metrics.stream():
            async with (
                self.model.reader.subscribe(self._watch) as subscription,
                Following(subscription, ending, keep_alive_s=keep_alive_s, give_up_at=give_up_at) as following,
            ):
                has_ended = False
                while not has_ended:
                    updates = await following.take()
                    self._gaps.took(updates)
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
        """Record that the client gets `error` instead of the rest of the reply."""
        if error.is_failure:
            why = without_values(error.message)
            log_event("request failed", level=logging.WARNING, request=self.request_id, code=error.code, why=why)
        self._telemetry.broke_off(error)

    async def close(self, *, left: bool) -> None:
        """Stop reading: the client has everything or an error, or it has `left`."""
        if left:
            self._telemetry.left()
        if self._has_ended:
            self.model.readers.detach(self.request_id, Reading.ENDED)
            return
        if self._watch.request is not None:
            self.model.unattended.add(self._watch)
        if self.model.shutdown.stopping:
            self.model.readers.detach(self.request_id, Reading.STOPPED)
        else:
            self.model.readers.detach(self.request_id, Reading.LEFT)
            self.model.disconnects.left(self.request_id)
