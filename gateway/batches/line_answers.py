"""Gets the lines of a batch answered like requests over HTTP."""

import time
from functools import partial
from itertools import count
from typing import Final

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.jobs.result_line import failed, responded
from orcastream.broker.jobs.runner import LineResult
from orcastream.gateway.batches.batch_line import BatchLine, with_deadline
from orcastream.gateway.batches.batch_object import Mark
from orcastream.gateway.batches.batch_request import BatchTerms
from orcastream.gateway.batches.posting_turns import PostingTurns
from orcastream.gateway.errors import ApiError, crashed, ended, invalid, unavailable
from orcastream.gateway.generate import Reply, close_all, enqueue_all, whole
from orcastream.gateway.intake import Received, admit
from orcastream.gateway.log import LOGGER
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.request import ApiRequest
from orcastream.gateway.replies.answer import as_api_error
from orcastream.gateway.replies.answer_room import AnswerTooLarge
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest

_ANEW: Final = frozenset({ErrorCode.EXPIRED, ErrorCode.LOST, "reply_expired", "reply_conflict", "request_not_found"})
"""Ends of an attempt whose answer is unobtainable: no part of it was delivered, so another attempt is allowed."""
_LATER: Final = frozenset({429, 503})
"""Statuses of requests that can be answered later."""
_UNKNOWN: Final = "unknown"
_SILENCE_S: Final = 5.0
"""How long a batch whose models have no workers keeps its turn while others wait for one."""
MAX_ANSWER_BYTES: Final = 16 * 1024**2
"""Bound of the answer to one line: Redis holds it whole, and a gateway holds one per line in flight."""


class LineAnswers:
    """See `orcastream.broker.jobs.runner.Answers`.

    A faulty line gets its error as result; service faults are waited out.
    """

    def __init__(self, gateway: Gateway, job: Job, order: JobOrder, terms: BatchTerms) -> None:
        self._gateway = gateway
        self._job = job
        self._order = order
        self._grant = terms.grant
        self._endpoint = terms.endpoint
        self._turns = PostingTurns()
        self._attempts: dict[int, int] = {}
        """Lines with more than one attempt: the number of the current attempt, from 0."""
        self._asked: dict[int, ServedModel] = {}
        """The model of each line that has been posted, or refused, and has no answer yet."""
        self._heard_at = time.monotonic()

    async def wait_for_workers(self) -> bool:
        """Whether nothing was answered lately and no model of the lines asked has a live worker.

        Raises LinkLost, ResponseError.
        """
        if not self._asked or time.monotonic() - self._heard_at < _SILENCE_S:
            return False
        for model in set(self._asked.values()):
            if await model.workers.alive():
                return False
        return True

    async def answer(self, line: JobLine) -> LineResult:
        """Ask until there is an answer, or a failure that another attempt would not change.

        Raises BrokerError, ResponseError.
        """
        try:
            return await self._result(line)
        finally:
            self._asked.pop(line.number, None)
            self._heard_at = time.monotonic()

    async def _result(self, line: JobLine) -> LineResult:
        line_id, custom_id = self._job.request_id(line.number), _UNKNOWN
        try:
            read = await self._gateway.offload.run(len(line.body), partial(self._read, line.body))
            custom_id = read.custom_id
            parse = partial(read.parse, self._endpoint, self._gateway.models.max_total_tokens)
            asked = await self._gateway.offload.run(len(read.body), parse)
            answered = await self._answer(line.number, asked, len(read.body))
        except (ApiError, InvalidRequest) as error:
            told = error if isinstance(error, ApiError) else invalid(error)
            return LineResult(responded(line_id, custom_id, told.status, line_id, encoded(told.body())), True)
        except AnswerTooLarge as error:
            return LineResult(failed(line_id, custom_id, "answer_too_large", _advice(error)), True)
        except (BrokerError, ResponseError):
            raise
        except Exception:  # another attempt would likely fail, too, and hold up the batch
            LOGGER.exception("the line %s failed", line_id)
            told = crashed("request")
            return LineResult(responded(line_id, custom_id, told.status, line_id, encoded(told.body())), True)
        if answered is None:
            await self._job.mark(Mark.OVERDUE, self._now_ms)
            message = "This request could not be answered before the completion window ended."
            return LineResult(failed(line_id, custom_id, "batch_expired", message), True)
        return LineResult(responded(line_id, custom_id, 200, *answered), False)

    async def withdraw(self, line: JobLine) -> None:
        """See Answers.

        Only a gateway that is gone may have known the current attempt, so this cancels every possible one.
        """
        unknown = self._order.attempts_by(self._now_ms, self._gateway.settings.max_timeout_s)
        try:
            for attempt in count():
                is_known = await self._cancel(self._job.request_id(line.number, attempt))
                if not is_known and attempt >= max(unknown, self._attempts.get(line.number, 0)):
                    return
        except ApiError as error:  # Redis is away, or this gateway stops: the next runner starts over
            raise LinkLost(str(error)) from None

    async def _cancel(self, key: str) -> bool:
        """Cancel the requests posted under ids derived from `key`; return False if none is known.

        Raises ApiError, LinkLost, Unwritable.
        """
        shown = self._endpoint.own_id(key)
        for number in count():
            request_id = f"{shown}.p{number}" if number else shown
            found = await self._gateway.models.find(request_id, self._grant.tenant)
            if found is None:
                return number > 0
            await found.model.cancel(found.request_id)
        raise AssertionError("count() has no end")

    def cancelled(self, line: JobLine) -> LineResult:
        """See Answers."""
        try:
            custom_id = self._read(line.body).custom_id
        except InvalidRequest:
            custom_id = _UNKNOWN
        except Exception:
            LOGGER.exception("a line of the batch %s cannot be read", self._job.id)
            custom_id = _UNKNOWN
        message = "The batch was cancelled before this request was answered."
        return LineResult(failed(self._job.request_id(line.number), custom_id, "batch_cancelled", message), True)

    def _read(self, raw: bytes) -> BatchLine:
        return BatchLine.read(raw, self._endpoint, self._gateway.models.max_total_tokens)

    async def _answer(self, number: int, asked: ApiRequest, size_bytes: int) -> tuple[str, bytes] | None:
        """Return the request's id and answer; None if the batch's time ends before.

        Raises ApiError, AnswerTooLarge.
        """
        while self._left_s > 0:
            try:
                return await self._ask(number, asked, size_bytes)
            except (ApiError, BrokerError, ResponseError) as error:
                told = _told(error)
                if told.code in _ANEW:
                    self._attempts[number] = self._attempts.get(number, 0) + 1
                elif told.status in _LATER:
                    self._turns.pause(float(told.headers.get("Retry-After", 1)))
                else:
                    raise told from None
        return None

    async def _ask(self, number: int, asked: ApiRequest, size_bytes: int) -> tuple[str, bytes] | None:
        """Make one attempt at a line; None if the batch's time ends before its turn.

        Stops computing an answer that is too large.
        """
        key = self._job.request_id(number, self._attempts.get(number, 0))
        async with self._turns.turn(lambda: self._left_s):
            if self._left_s <= 0:  # a refusal would make the next line wait, too
                return None
            replies = await self._post(number, asked, size_bytes, key)
        try:
            return replies[0].shape.id, await whole(replies, MAX_ANSWER_BYTES)
        except AnswerTooLarge:
            await self._cancel(key)
            raise
        finally:
            await close_all([reply.session for reply in replies], left=False)

    async def _post(self, number: int, asked: ApiRequest, size_bytes: int, key: str) -> list[Reply]:
        """Post a line under an id derived from `key`."""
        named = await self._gateway.models.named(asked.options.model)
        model, asked = named.model, asked.with_adapter(named.adapter)
        self._asked[number] = model
        limits = await model.require_worker()
        admitted = await self._gateway.offload.run(size_bytes, partial(self._admit, model, limits, asked, key))
        return await enqueue_all(Received(model, asked, self._grant, admitted), RequestTelemetry(timed=False))

    def _admit(self, model: ServedModel, limits: ModelLimits, asked: ApiRequest, key: str) -> list[GenerationRequest]:
        now_ms = self._now_ms
        if now_ms >= self._order.deadline_ms:
            raise ended(ErrorCode.EXPIRED, None, None)
        latest_ms = now_ms + int(self._gateway.settings.max_timeout_s * 1000)
        asked = with_deadline(asked, min(self._order.deadline_ms, latest_ms))
        return admit(model, limits, asked, self._grant, {"idempotency-key": key})

    @property
    def _left_s(self) -> float:
        return (self._order.deadline_ms - self._now_ms) / 1000

    @property
    def _now_ms(self) -> int:
        return self._gateway.redis.now_ms


def _advice(error: AnswerTooLarge) -> str:
    return (
        f"The answer has more than {error.most_bytes} bytes, the maximum for a line of a batch: ask for fewer tokens, "
        "choices, log probabilities or prompts in a line."
    )


def _told(error: ApiError | BrokerError | ResponseError) -> ApiError:
    if isinstance(error, ResponseError):
        return unavailable(f"Redis cannot serve this now: {error}")
    return as_api_error(error, "")
