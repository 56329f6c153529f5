"""Turns a claimed queue entry into a running request, and reattaches it to its log after an epoch has ended."""

import logging
from collections.abc import Collection

from orcastream.broker.aside import read_aside
from orcastream.broker.attach import Attached, NotMine
from orcastream.broker.claimed import Claimed
from orcastream.broker.cleanup import drop_duplicate
from orcastream.broker.dead_letter import is_hopeless
from orcastream.broker.ending import Ender
from orcastream.broker.errors import Unusable
from orcastream.engine import OrcaEngine
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.constraints import Constraints
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.restoring import Restorer
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")


class Admission:
    """Checks claimed requests, fences their logs, and determines what the engine must run."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: OrcaEngine,
        tokenizer: Tokenizer | None,
        adapters: Collection[str],
        roster: Roster,
        keys: Keys,
        worker: str,
        lifecycle: Lifecycle,
        restorer: Restorer,
    ) -> None:
        self._settings = settings
        self._limits = engine.limits
        self._eos_token_ids = engine.eos_token_ids
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._constraints = Constraints(tokenizer, engine.limits.vocab_size, engine.eos_token_ids)
        self._roster = roster
        self._keys = keys
        self._worker = worker
        self._lifecycle = lifecycle
        self._restorer = restorer
        self._ender = Ender(
            keys,
            worker,
            retention_ms=settings.retention_ms,
            on_end=lifecycle.ended_unowned,
            on_set_aside=lifecycle.set_aside,
        )

    async def admit(self, session: Session, claimed: Claimed) -> Running | None:
        """Return the request of a fresh claim, registered in the roster; None if there is nothing to run."""
        try:
            request = await self._request(session, claimed)
        except InvalidRequest as error:
            answered = await self._ender.reject(session.link, claimed.ref, claimed.fields, error)
            self._lifecycle.refused(claimed, error, answered=answered)
            return None
        twin = self._roster.by_id(request.id)
        if twin is not None and twin.ref < claimed.ref and await session.queue.exists(twin.ref, twin.id):
            await drop_duplicate(session.link, session.keys, request_id=request.id, ref=claimed.ref, stays=twin.ref)
            return None
        running = Running(
            claimed,
            request,
            max_tokens=self._limits.resolve_max_tokens(request.payload),
            tokenizer=self._tokenizer,
            claimed_ms=session.now_ms,
            constraints=self._constraints,
        )
        self._roster.add(running)
        return running

    async def attach(self, session: Session, running: Running, *, is_new: bool) -> bool:
        """Open an epoch and read the log; True if the engine must start (again) on `running`.

        `is_new`: nobody has begun it yet. A request that belongs to another worker, or has ended, leaves the roster.
        """
        self._lifecycle.attaching(running)
        outcome = await session.attach(running, is_new=is_new)
        if not isinstance(outcome, Attached):
            self._lifecycle.not_attached(running, outcome)
            self._roster.remove(running)
            if isinstance(outcome, NotMine):  # or Redis has lost it, and kept the connection
                self._restorer.add(running)
            return False
        running.last_epoch = outcome.log.epoch
        self._lifecycle.attached(running, outcome)
        if running.closed:
            return False
        self._check_end(session, running, outcome)
        # Nothing is awaited from here until the engine has it: a request that looks begun must have begun.
        restart = running.attached(outcome.log, outcome.fold, self._eos_token_ids)
        return restart and not running.ended

    async def set_aside(self, session: Session, running: Running, why: str) -> None:
        """End a request that this worker cannot serve, as a dead letter. Raises LinkLost, Unwritable."""
        code, message = ErrorCode.DEAD_LETTER, f"it cannot be served: {why}"
        try:
            await self._ender.end(
                session.link, running.id, ref=running.ref, code=code, message=message, request=running.request
            )
        except Unusable:
            await self._ender.set_aside(session.link, running.ref, code, message)

    def _check_end(self, session: Session, running: Running, outcome: Attached) -> None:
        if outcome.cancelled:
            running.fail(ErrorCode.CANCELLED, "the request was cancelled")
        elif session.now_ms >= running.request.deadline_ms:
            running.fail(ErrorCode.EXPIRED, "the deadline passed")
        elif is_hopeless(running.claimed.deliveries, outcome.fold, self._settings.max_deliveries):
            attempts = running.claimed.deliveries - 1  # new tokens, if any, came in the first one that counts
            log.error("dead letter", extra=running.log_fields(attempts=attempts))
            running.fail(ErrorCode.DEAD_LETTER, f"no new token in {attempts} attempts")

    async def _request(self, session: Session, claimed: Claimed) -> GenerationRequest:
        """Return the request in an entry; raise InvalidRequest for any defect.

        An idle worker read the server's clock some time ago, and it may have been set since: before a deadline counts
        as passed, or as too far ahead, it is read again.
        """
        try:
            request = await self._parse(claimed, session.now_ms)
            if session.now_ms < request.deadline_ms:
                return request
        except InvalidRequest as error:
            if error.field != "deadline":
                raise
        await session.read_clock()
        return await self._parse(claimed, session.now_ms)

    async def _parse(self, claimed: Claimed, now_ms: int) -> GenerationRequest:
        """Return the request in an entry; raise InvalidRequest for any defect: it must not affect other requests."""
        try:
            return await read_aside(lambda: self._read(claimed, now_ms), len(claimed.fields.get(b"payload", b"")))
        except InvalidRequest:
            raise
        except Exception as error:
            log.exception("entry cannot be read", extra={"entry": str(claimed.ref)})
            raise InvalidRequest("payload", repr(error), "a payload that this worker can read") from error

    def _read(self, claimed: Claimed, now_ms: int) -> GenerationRequest:
        request = GenerationRequest.from_fields(
            claimed.fields,
            stream_class=claimed.ref.priority_class,
            now_ms=now_ms,
            max_payload_bytes=self._limits.max_payload_bytes,
        )
        if claimed.repeated is not None:
            name = claimed.repeated.decode()
            raise InvalidRequest(
                name, claimed.fields[claimed.repeated], "one value: no field may appear more than once"
            )
        lane = self._keys.lane_of(request.id)
        if lane != claimed.ref.lane:
            allowed = f"{lane} for this id, of {self._keys.queue_lanes} lanes"
            raise InvalidRequest("queue lane", claimed.ref.lane, allowed)
        self._limits.check(request.payload)
        if request.payload.stop and self._tokenizer is None:
            raise InvalidRequest("stop", request.payload.stop, "nothing: this model has no tokenizer")
        adapter = request.payload.adapter
        if adapter and adapter not in self._adapters:
            raise InvalidRequest("adapter", adapter, ", ".join(self._adapters) or "none: this worker has no adapters")
        return request
