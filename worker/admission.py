"""From a claimed queue entry to a running request, and back into its log whenever an epoch has ended."""

import logging
import time

from broker.attach import Attached, attach
from broker.cancel import cancelled
from broker.claim import Claimed
from broker.dead_letter import bury, is_hopeless
from broker.ending import end_request
from engine import OrcaEngine
from schemas.codec import decode, form_of
from schemas.errors import ErrorCode, InvalidRequest
from schemas.events import Started
from schemas.keys import check_id
from schemas.request import DEFAULT_TENANT, GenerationRequest, parse_payload
from text.tokenizer import Tokenizer
from worker.roster import Roster
from worker.running import Running
from worker.session import Session
from worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")


class Admission:
    """Checks claimed requests, fences their logs, and says what the engine has to run."""

    def __init__(
        self, settings: WorkerSettings, engine: OrcaEngine, tokenizer: Tokenizer | None, roster: Roster, worker: str
    ) -> None:
        self._settings = settings
        self._limits = engine.limits
        self._eos_token_ids = engine.eos_token_ids
        self._tokenizer = tokenizer
        self._roster = roster
        self._worker = worker

    async def admit(self, session: Session, claimed: Claimed) -> Running | None:
        """The request of a fresh claim, registered in the roster; None when there is nothing to run."""
        try:
            request = self._parse(claimed)
        except InvalidRequest as error:
            log.warning("request refused", extra={"entry": str(claimed.ref), "why": str(error)})
            await self._refuse(session, claimed, error)
            return None
        running = Running(
            claimed,
            request,
            max_tokens=self._limits.resolve_max_tokens(request.payload),
            tokenizer=self._tokenizer,
        )
        self._roster.add(running)
        return running

    async def attach(self, session: Session, running: Running) -> bool:
        """Open an epoch and read the log; True when the engine has to start (again) on `running`.

        A request that is somebody else's, or already ended, leaves the roster.
        """
        request = running.request
        outcome = await attach(
            session.link,
            session.keys,
            request_id=request.id,
            worker=self._worker,
            ref=running.ref,
            started=running.started(self._worker, session.keys.model),
            form=request.form,
            log_expire_at_ms=request.deadline_ms + self._settings.retention_ms,
            retention_ms=self._settings.retention_ms,
            above_epoch=running.last_epoch,
        )
        if not isinstance(outcome, Attached):
            why = type(outcome).__name__
            log.info("request let go", extra={"request": request.id, "why": why})
            self._roster.remove(running)
            return False
        restart = running.attached(outcome.log, outcome.fold, self._eos_token_ids)
        await self._check_end(session, running, outcome)
        return restart and not running.ended

    async def _check_end(self, session: Session, running: Running, outcome: Attached) -> None:
        if await cancelled(session.link, session.keys, [running.id]):
            running.fail(ErrorCode.CANCELLED, "the request was cancelled")
        elif time.time() * 1000 >= running.request.deadline_ms:
            running.fail(ErrorCode.EXPIRED, "the deadline passed")
        elif is_hopeless(running.claimed.deliveries, outcome.fold, self._settings.max_deliveries):
            log.error("dead letter", extra={"request": running.id, "attempts": running.claimed.deliveries})
            running.fail(ErrorCode.DEAD_LETTER, f"{running.claimed.deliveries} attempts brought no new token")

    async def _refuse(self, session: Session, claimed: Claimed, error: InvalidRequest) -> None:
        """End an entry that breaks the contract: an error where its producer looks for the reply, and a dead letter."""
        try:
            request_id = check_id(claimed.fields.get(b"id", b"").decode(errors="replace"))
        except InvalidRequest:
            await bury(session.link, session.keys, claimed.ref, reason=error.code, message=str(error))
            return
        retention_ms = self._settings.retention_ms
        await end_request(
            session.link,
            session.keys,
            request_id=request_id,
            ref=claimed.ref,
            code=error.code,
            message=str(error),
            field_name=error.field,
            started=Started(
                worker=self._worker,
                model=session.keys.model,
                tenant=_tenant(claimed),
                priority_class=claimed.ref.priority_class,
                entry=str(claimed.ref),
                seed=0,
                prompt_tokens=0,
            ),
            form=form_of(claimed.fields.get(b"payload", b"")),
            log_expire_at_ms=int(time.time() * 1000) + retention_ms,
            retention_ms=retention_ms,
        )

    def _parse(self, claimed: Claimed) -> GenerationRequest:
        request = GenerationRequest.from_fields(
            claimed.fields, stream_class=claimed.ref.priority_class, now_ms=int(time.time() * 1000)
        )
        self._limits.check(request.payload)
        if request.payload.stop and self._tokenizer is None:
            raise InvalidRequest("stop", request.payload.stop, "nothing: this model has no tokenizer")
        return request


def _tenant(claimed: Claimed) -> str:
    """Whose request a payload is that cannot be accepted: as much of it as can be read."""
    try:
        return parse_payload({"prompt": [0], "tenant": decode(claimed.fields.get(b"payload", b""))["tenant"]}).tenant
    except (InvalidRequest, KeyError):
        return DEFAULT_TENANT
