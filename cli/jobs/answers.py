"""Answers to the lines of a bulk job, obtained through the client over Redis."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError
from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.jobs.result_line import failed
from orcastream.broker.jobs.runner import LineResult
from orcastream.cli.jobs.context import Context
from orcastream.cli.jobs.question import Question
from orcastream.cli.jobs.result_line import answered
from orcastream.client import (
    AsyncClient,
    ClientError,
    Expired,
    InvalidRequest,
    ReplyConflict,
    ReplyExpired,
    Result,
    Unavailable,
)
from orcastream.client.entry import prompt_ids
from orcastream.client.errors import NOT_ENDED
from orcastream.client.request import Prompt
from orcastream.text.tokenizer import Tokenizer


class Answers:
    """See `orcastream.broker.jobs.runner.Answers`. Raises Unavailable if Redis stays away or takes no requests."""

    def __init__(
        self,
        client: AsyncClient,
        job: Job,
        order: JobOrder,
        *,
        model: str,
        tokenizer: Tokenizer,
        context: Context,
        max_tokens: int | None,
        timeout_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        self._client = client
        self._job = job
        self._order = order
        self._model = model
        self._tokenizer = tokenizer
        self._context = context
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._now_ms = now_ms

    async def answer(self, line: JobLine) -> LineResult:
        """Ask until there is an answer, or a failure that another attempt would not fix."""
        try:
            return await self._answer(line)
        except (Unavailable, BrokerError, ResponseError):
            raise
        except Exception as error:  # another attempt would most likely fail too, and hold up the whole job
            message = f"This line could not be processed: {error!r}"
            line_id = self._job.request_id(line.number)
            return LineResult(failed(line_id, self._custom_id(line), "internal_error", message), True)

    async def _answer(self, line: JobLine) -> LineResult:
        line_id = self._job.request_id(line.number)
        try:
            question = Question.read(line.body, line.number, model=self._model, max_tokens=self._max_tokens)
        except InvalidRequest as error:
            return LineResult(failed(line_id, f"request-{line.number}", str(error.code), str(error)), True)
        for attempt in count():
            left_s = (self._order.deadline_ms - self._now_ms()) / 1000
            if left_s <= 0:
                return LineResult(failed(line_id, question.custom_id, "expired", "The job has expired."), True)
            try:
                result = await self._ask(question, self._job.request_id(line.number, attempt), left_s)
                return LineResult(answered(line_id, question, result, self._model, self._tokenizer), False)
            except (Expired, ReplyConflict, ReplyExpired):
                pass  # the answer is lost; none of it was shown
            except Unavailable as error:
                if error.code != NOT_ENDED:
                    raise
            except (ClientError, InvalidRequest) as error:
                return LineResult(failed(line_id, question.custom_id, str(error.code), str(error)), True)
        raise AssertionError("count() has no end")

    async def withdraw(self, line: JobLine) -> None:
        """See `orcastream.broker.jobs.runner.Answers`. Tries all attempts: only a lost process knew the current one."""
        ended = self._order.attempts_by(self._now_ms(), self._timeout_s)
        for attempt in count():
            reply = self._client.generate([0], request_id=self._job.request_id(line.number, attempt))
            if not await reply.cancel() and attempt >= ended:  # canceling posts nothing
                return

    def cancelled(self, line: JobLine) -> LineResult:
        """See `orcastream.broker.jobs.runner.Answers`."""
        line_id = self._job.request_id(line.number)
        return LineResult(failed(line_id, self._custom_id(line), "cancelled", "The job was cancelled."), True)

    def _custom_id(self, line: JobLine) -> str:
        """Return the line's custom_id, or one derived from its number if the line cannot be read for any reason."""
        try:
            return Question.read(line.body, line.number, model=self._model, max_tokens=self._max_tokens).custom_id
        except Exception:
            return f"request-{line.number}"

    async def _ask(self, question: Question, request_id: str, left_s: float) -> Result:
        prompt, parameters = await self._fitted(question)
        reply = self._client.generate(
            prompt,
            request_id=request_id,
            priority=self._order.priority_class,
            timeout_s=min(self._timeout_s, left_s),
            **parameters,
        )
        async with reply:
            return await reply.result()

    async def _fitted(self, question: Question) -> tuple[Prompt, Mapping[str, Any]]:
        """Return prompt and parameters of a line. Raises InvalidRequest if its prompt leaves no room for the answer.

        A default answer length never causes a refusal: it is reduced to fit.
        """
        prompt, parameters, longest = question.prompt, question.parameters, question.longest
        if longest is None:
            return prompt, parameters
        ids, limits = prompt_ids(prompt, self._tokenizer), await self._context.limits()
        room = limits.fit(len(ids), max_tokens=None, min_tokens=parameters.get("min_tokens", 0))
        return ids, {**parameters, "max_tokens": min(longest, room)}
