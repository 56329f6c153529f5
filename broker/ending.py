"""Ending a request that nobody owns: its deadline passed, it was cancelled while it waited, or it is lost."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.attach import Attached, Ended, attach
from orcastream.broker.cleanup import drop_duplicate, finish
from orcastream.broker.connection import Connection
from orcastream.broker.dead_letter import bury
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import BrokerError, Fenced, Unusable, Unwritable, refusal
from orcastream.broker.fold import Fold, fold_log
from orcastream.broker.queue import RequestQueue, entry_state
from orcastream.broker.reading import read_aside
from orcastream.broker.resp import fields_of
from orcastream.schemas.codec import Form, decode, form_of
from orcastream.schemas.errors import ErrorCode, InvalidRequest, without_values
from orcastream.schemas.events import Ending, Started, Terminal, Usage
from orcastream.schemas.keys import Keys, check_id
from orcastream.schemas.limits import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_PARTS
from orcastream.schemas.request import DEFAULT_TENANT, GenerationRequest, parse_payload
from orcastream.schemas.seed import derived_seed

log = logging.getLogger(__name__)

__all__ = ["Ender", "OnEnd", "finish"]

OnEnd = Callable[[EntryRef | None, Terminal, int], None]
"""Told of a terminal event that was written: its queue entry, the event, and the server's clock (ms of Unix time)."""

ATTEMPTS = 5
"""How often an end is tried against an owner that lives and keeps writing."""


class Ender:
    """Ends requests without owning them. `who` stands as worker in the started events that this writes.

    `on_end` is called for the terminal events that this writes, not for those that were there.
    """

    def __init__(self, keys: Keys, who: str, *, retention_ms: int, on_end: OnEnd | None = None) -> None:
        self._keys = keys
        self._who = who
        self._on_end = on_end
        self._retention_ms = retention_ms

    async def end(
        self,
        link: Connection,
        request_id: str,
        *,
        ref: EntryRef | None,
        code: ErrorCode,
        message: str,
        request: GenerationRequest | None = None,
        tenant: str = DEFAULT_TENANT,
        form: Form = Form.MSGPACK,
        field_name: str | None = None,
    ) -> Terminal | None:
        """Write the terminal event, unless one is there, and clean up; the terminal that stands in the log then.

        None when its owner lives and kept writing, or when the request lives on in another entry. What an
        existing log says of tenant, seed and prompt goes on; else `request`, else `tenant` and `form`.
        Raises LinkLost, Unwritable; Unusable where its log can never be written, which leaves `set_aside`.
        """
        with _about_one_log(request_id):
            for _ in range(ATTEMPTS):
                entries = await self._read(link, request_id)
                fold = fold_log(entries)
                if ref is not None and await self._is_duplicate(link, request_id, ref, fold):
                    return None
                started = self._started(request_id, ref, fold, request, tenant)
                try:
                    attachment = await attach(
                        link,
                        self._keys,
                        request_id=request_id,
                        worker=self._who,
                        started=started,
                        ref=ref,
                        form=_form(entries, request, form),
                        log_expire_at_ms=0 if request is None else request.deadline_ms + self._retention_ms,
                        retention_ms=self._retention_ms,
                        owned=False,
                    )
                    if not isinstance(attachment, Attached):
                        return attachment.fold.terminal if isinstance(attachment, Ended) else None
                    terminal = _terminal(attachment.fold, started, code, message, field_name)
                    await attachment.log.end(terminal)
                except Fenced:
                    continue
                if self._on_end is not None:
                    self._on_end(ref, terminal, attachment.log.epoch)  # an epoch is the clock at its begin
                await finish(
                    link,
                    self._keys,
                    request_id=request_id,
                    tenant=started.tenant,
                    ref=ref,
                    terminal=terminal,
                    retention_ms=self._retention_ms,
                )
                return terminal
        return None

    async def end_if_waiting(self, link: Connection, request: GenerationRequest, ref: EntryRef, message: str) -> bool:
        """End a cancelled request that no worker has, also one that was handed over; False when one has it."""
        if not (await entry_state(link, self._keys, ref)).waits:
            return False
        code = ErrorCode.CANCELLED
        return await self.end(link, request.id, ref=ref, code=code, message=message, request=request) is not None

    async def reject(
        self, link: Connection, ref: EntryRef, fields: Mapping[bytes, bytes], error: InvalidRequest
    ) -> bool:
        """Refuse a claimed entry that breaks the contract: a terminal error if its id can be read, and a dead letter.

        False where it became a dead letter alone: no reply log can be named, or written. Raises LinkLost, Unwritable.
        """
        try:
            request_id = check_id(fields.get(b"id", b"").decode())
        except (InvalidRequest, UnicodeDecodeError):
            await bury(link, self._keys, ref, reason=error.code, message=str(error))
            return False
        payload = fields.get(b"payload", b"")
        try:
            await self.end(
                link,
                request_id,
                ref=ref,
                code=error.code,
                message=str(error),
                tenant=await read_aside(lambda: _tenant(payload), len(payload)),
                form=form_of(payload),
                field_name=error.field,
            )
        except Unusable:
            await self.set_aside(link, ref, error.code, str(error))
            return False
        return True

    async def set_aside(self, link: Connection, ref: EntryRef, code: ErrorCode, message: str) -> None:
        """Bury an entry whose reply log cannot be written: there is no place for a terminal event.

        Raises LinkLost, Unwritable.
        """
        log.warning("%s is set aside without a terminal event: %s", ref, without_values(message))
        await bury(link, self._keys, ref, reason=code, message=message, waiting=True)

    async def _is_duplicate(self, link: Connection, request_id: str, ref: EntryRef, fold: Fold) -> bool:
        """Whether an earlier entry is the request, and `ref`, which did not begin the log, a later one of its id.

        What is wrong with that is its own, and it has been dropped.
        """
        if fold.first_entry == str(ref):
            return False
        queue = RequestQueue(link, self._keys)
        try:
            mark = await queue.find(request_id)
            if mark is None or mark.ref.lane != ref.lane or mark.ref >= ref or not await queue.exists(mark.ref):
                return False
        except ResponseError as error:
            raise Unwritable(error) from None
        await drop_duplicate(link, self._keys, request_id=request_id, ref=ref, stays=mark.ref)
        return True

    async def _read(self, link: Connection, request_id: str) -> Sequence[Any]:
        try:
            entries: Sequence[Any] = await link.call("XRANGE", self._keys.reply(request_id), "-", "+")
        except ResponseError as error:
            raise refusal(error) from None
        return entries

    def _started(
        self, request_id: str, ref: EntryRef | None, fold: Fold, request: GenerationRequest | None, tenant: str
    ) -> Started:
        entry = "" if ref is None else str(ref)
        if fold.started is not None:
            seed = fold.started.seed if fold.first_seed is None else fold.first_seed
            return replace(fold.started, worker=self._who, entry=entry, seed=seed)
        payload = None if request is None else request.payload
        return Started(
            worker=self._who,
            model=self._keys.model,
            tenant=tenant if payload is None else payload.tenant,
            priority_class="" if ref is None else ref.priority_class,
            entry=entry,
            seed=derived_seed(request_id) if payload is None or payload.seed is None else payload.seed,
            prompt_tokens=0 if payload is None else len(payload.prompt),
            n=1 if payload is None else payload.n,
            answer_format="" if payload is None else payload.answer_format,
        )


@contextmanager
def _about_one_log(request_id: str) -> Iterator[None]:
    """Nothing that is wrong with one log, foreseen or not, may keep others from being ended."""
    try:
        yield
    except (BrokerError, ResponseError):
        raise
    except Exception as error:
        log.exception("%s cannot be ended", request_id)
        raise Unusable(ResponseError(type(error).__name__)) from error


def _tenant(payload: bytes) -> str:
    """Whose request a payload is that cannot be accepted, as far as it can be read at a bounded cost."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        return DEFAULT_TENANT
    try:
        body = decode(payload, max_parts=MAX_PAYLOAD_PARTS)
        return parse_payload({"prompt": [0], "tenant": body["tenant"]}).tenant
    except (InvalidRequest, KeyError):
        return DEFAULT_TENANT


def _form(entries: Sequence[Any], request: GenerationRequest | None, otherwise: Form) -> Form:
    if request is not None:
        return request.form
    if entries:
        return form_of(fields_of(entries[0][1]).get(b"payload", b""))
    return otherwise


def _terminal(fold: Fold, started: Started, code: ErrorCode, message: str, field_name: str | None) -> Terminal:
    endings = tuple(Ending(None, len(tokens)) for tokens in fold.tokens)
    usage = Usage(started.prompt_tokens, sum(ending.tokens for ending in endings))
    return Terminal(endings, usage, error=code, message=message, field_name=field_name)
