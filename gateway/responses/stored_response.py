"""A response requested by its id: its request's record, and its reply so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from orcastream.broker.errors import ReplyConflict
from orcastream.broker.followed import FollowedLog
from orcastream.broker.log_pages import read_log
from orcastream.broker.loss import Watch
from orcastream.broker.subscription import Update
from orcastream.gateway.admission.offload import Offload
from orcastream.gateway.errors import reply_conflict
from orcastream.gateway.openai.responses.builder import ResponseBuilder
from orcastream.gateway.openai.responses.record import ResponseRecord
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.served_models import Found


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A request of one tenant, and its record."""

    found: Found
    record: ResponseRecord

    @classmethod
    async def read(cls, found: Found) -> Self | None:
        """Return the stored response of a request; None if it has no record. Raises ApiError."""
        record = await read_record(found.model, found.request_id)
        return None if record is None else cls(found, record)

    @classmethod
    def unknown(cls, found: Found) -> Self:
        """Return the response of a request without a record: its reply can be read nevertheless."""
        origin = found.origin
        created_ms = found.model.redis.now_ms if origin.ref is None else origin.ref.order[0]
        return cls(found, ResponseRecord.unknown(found.shown_model, created_ms))

    @property
    def id(self) -> str:
        """The client's id."""
        return self.found.shown_id

    def builder(self) -> ResponseBuilder:
        """Return a new builder that takes the reply from its start."""
        return ResponseBuilder(
            self.record.shape(self.id), ReplyText(self.found.model.tokenizer, split=self.found.request_id)
        )

    async def now(self, offload: Offload) -> ResponseBuilder:
        """Return the builder after the reply so far. Raises ApiError."""
        model, request_id = self.found.model, self.found.request_id
        key = model.keys.reply(request_id)
        entries = await model.patiently(lambda link: read_log(link, key))
        size = sum(len(part) for _, flat in entries for part in flat)
        try:
            builder = await offload.run(size, lambda: self._built(entries))
        except ReplyConflict:
            raise reply_conflict() from None
        if not builder.has_ended and self.found.origin.request is None:
            self._look_after()
        return builder

    def _built(self, entries: Sequence[Any]) -> ResponseBuilder:
        builder = self.builder()
        builder.begin()
        for update in _updates(self.found, entries):
            for _ in builder.take(update):
                pass
        return builder

    def _look_after(self) -> None:
        """Watch a request whose queue entry was gone before its log was read, but whose log has no end: Redis may
        have lost it.
        """
        origin = self.found.origin
        self.found.model.unattended.add(Watch(self.found.request_id, origin.tenant, origin.ref))


async def read_record(model: ServedModel, request_id: str) -> ResponseRecord | None:
    """Return the record of a request; None if there is none. Raises ApiError."""
    raw = await model.patiently(lambda link: model.responses.read(link, request_id))
    return None if raw is None else ResponseRecord.decode(raw)


def _updates(found: Found, entries: Sequence[Any]) -> Sequence[Update]:
    """Return a log's updates as its followers see them. Raises ReplyConflict if the log contradicts itself."""
    followed = FollowedLog(Watch(found.request_id, found.origin.tenant), "", found.model.keys.model, 0.0)
    while not all(followed.take(entry) for entry in entries):
        pass  # start over, once per epoch that has a hole
    if followed.state.failure is not None:
        raise followed.state.failure
    return followed.state.unread
