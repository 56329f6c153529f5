"""Ends requests that nobody owns: the deadline passed, they were cancelled while waiting, or they are lost."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.aside import read_aside
from orcastream.broker.attach import Attached, Ended, attach
from orcastream.broker.cleanup import acknowledge_call, drop_duplicate, finish
from orcastream.broker.connection import Connection
from orcastream.broker.dead_letter import bury
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import BrokerError, Fenced, Unusable, Unwritable, refusal, require
from orcastream.broker.fold import Fold, fold_log
from orcastream.broker.log_pages import read_log
from orcastream.broker.queue import RequestQueue, entry_state
from orcastream.broker.resp import fields_of
from orcastream.schemas.codec import Form, decode, form_of
from orcastream.schemas.errors import ErrorCode, InvalidRequest, without_values
from orcastream.schemas.events import Ending, Started, Terminal, Usage
from orcastream.schemas.keys import DEFAULT_TENANT, Keys, check_id
from orcastream.schemas.limits import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_PARTS
from orcastream.schemas.request import GenerationRequest, parse_payload
from orcastream.schemas.seed import derived_seed

log = logging.getLogger(__name__)

__all__ = ["Ender", "OnEnd", "OnSetAside", "finish"]

OnEnd = Callable[[EntryRef | None, Terminal, int], None]
"""Called after writing a terminal event: its queue entry, the event, and the server's clock (ms of Unix time)."""
OnSetAside = Callable[[], None]
"""Called after an entry became a dead letter without a terminal event."""

ATTEMPTS = 5
"""How often an end is attempted against an owner that is alive and keeps writing."""


class Ender:
    """Ends requests without owning them. `who` is the worker name in the started events that this writes.

    `on_end` is called for terminal events that this writes, not for existing ones; `on_set_aside` for entries
    that it turns into dead letters without one.
    """

    def __init__(
        self,
        keys: Keys,
        who: str,
        *,
        retention_ms: int,
        on_end: OnEnd | None = None,
        on_set_aside: OnSetAside | None = None,
    ) -> None:
        self._keys = keys
        self._who = who
        self._on_end = on_end
        self._on_set_aside = on_set_aside
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
        """Write the terminal event, unless there is one, and clean up; return the log's terminal.

        Returns None if the owner is alive and kept writing, or if the request lives on in another entry. Tenant, seed
        and prompt come from an existing log, else from `request`, else from `tenant` and `form`. Raises LinkLost,
        Unwritable; Unusable if its log can never be written: then use `set_aside`.
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
                    self._on_end(ref, terminal, attachment.log.epoch)  # an epoch is the clock at its start
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
        """End a cancelled request that no worker holds, including a handed-over one; False if a worker holds it."""
        if not (await entry_state(link, self._keys, ref, request.id)).waits:
            return False
        code = ErrorCode.CANCELLED
        return await self.end(link, request.id, ref=ref, code=code, message=message, request=request) is not None

    async def reject(
        self, link: Connection, ref: EntryRef, fields: Mapping[bytes, bytes], error: InvalidRequest
    ) -> bool:
        """Refuse a claimed entry that breaks the contract: a terminal error if its id can be read, and a dead letter.

        Returns False if it only became a dead letter: its log cannot be named or written. Raises LinkLost, Unwritable.
        """
        try:
            request_id = check_id(fields.get(b"id", b"").decode())
        except (InvalidRequest, UnicodeDecodeError):
            await self._bury(link, ref, error.code, str(error), waiting=False)
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
        await self._bury(link, ref, code, message, waiting=True)

    async def _bury(self, link: Connection, ref: EntryRef, code: ErrorCode, message: str, *, waiting: bool) -> None:
        buried = await bury(link, self._keys, ref, reason=code, message=message, waiting=waiting)
        if buried and self._on_set_aside is not None:
            self._on_set_aside()

    async def _is_duplicate(self, link: Connection, request_id: str, ref: EntryRef, fold: Fold) -> bool:
        """Whether another entry is the request, and `ref`, which did not begin the log, is a later or misplaced one.

        The error then concerns only the duplicate, which has been dropped.
        """
        if fold.first_entry == str(ref):
            return False
        queue = RequestQueue(link, self._keys)
        try:
            mark = await queue.find(request_id)
            if mark is None or (mark.ref.lane == ref.lane and mark.ref >= ref):
                return False
            if not await queue.exists(mark.ref, request_id):
                return False
        except ResponseError as error:
            raise Unwritable(error) from None
        if mark.ref.lane == ref.lane:
            await drop_duplicate(link, self._keys, request_id=request_id, ref=ref, stays=mark.ref)
        else:  # no command may name keys of two lanes
            require(await link.call_many([acknowledge_call(self._keys, ref, request_id)]))
        return True

    async def _read(self, link: Connection, request_id: str) -> Sequence[Any]:
        try:
            return await read_log(link, self._keys.reply(request_id))
        except ResponseError as error:
            raise refusal(error) from None

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
    """Keep a defect of one log, foreseen or not, from stopping the ending of other requests."""
    try:
        yield
    except (BrokerError, ResponseError):
        raise
    except Exception as error:
        log.exception("%s cannot be ended", request_id)
        raise Unusable(ResponseError(type(error).__name__)) from error


def _tenant(payload: bytes) -> str:
    """Return the tenant of an unacceptable payload, as far as it can be read at a bounded cost."""
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
