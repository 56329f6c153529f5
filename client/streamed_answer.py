"""An answer as it arrives in a gateway's streams, over any number of connections: each part of it once."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from orcastream.client.attempts import PASSING_CODES, Passing, unreachable
from orcastream.client.errors import ClientError, Lost, Unavailable, conflict, failure
from orcastream.client.result import Choice, Delta, Result, TokenLogprob
from orcastream.client.told_logprobs import of_chunk, of_prompt_chunk
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Usage

_DONE: Final = "[DONE]"


class StreamedAnswer:
    """The text of each choice, and the current stream's position in it.

    A stream that begins after `last_id` contains only new parts. One that begins at the start repeats the delivered
    parts, which are compared and left out.
    """

    def __init__(self, request_id: str, prompt_logprobs: int | None) -> None:
        """`prompt_logprobs`: number of likeliest tokens requested for each token of the prompt."""
        self._request_id = request_id
        self._most_likeliest = prompt_logprobs or 0
        self._texts: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._usage: Usage | None = None
        self._at: dict[int, int] = {}
        """The current stream's position in each choice, in characters."""
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self._logprobs_at: dict[int, int] = {}
        """The current stream's position in each choice's log probabilities, in tokens."""
        self.accepted = False
        """Whether the gateways have the request: it can be followed, and need not be posted."""
        self.last_id: str | None = None
        """Id of the event to resume after; None means from the start."""

    def begins(self) -> None:
        """A stream begins, after `last_id` or at the start."""
        goes_on = self.last_id is not None
        self._at = {choice: len(text) for choice, text in self._texts.items()} if goes_on else {}
        self._logprobs_at = {choice: len(told) for choice, told in self._logprobs.items()} if goes_on else {}
        self.accepted = True

    def forgotten(self) -> None:
        """The service has lost the request: it must be posted again, and its answer restarts."""
        self.accepted = False
        self.last_id = None

    def take(self, data: str) -> Iterator[Delta | Result]:
        """Yield what is new in one event; the Result comes last. Raises Passing, ClientError."""
        if data == _DONE:
            yield self._result()
            return
        event = self._read(data)
        if "error" in event:
            raise self._error(event["error"])
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content")
            if told := choice.get("prompt_logprobs"):
                self._prompt_logprobs = tuple(of_prompt_chunk(told, self._most_likeliest))
            fresh = self._fresh(choice["index"], text or "")
            logprobs = self._fresh_logprobs(choice["index"], choice.get("logprobs") or {})
            if fresh or logprobs:
                yield Delta(choice["index"], fresh, logprobs=logprobs)
            if choice.get("finish_reason"):
                self._reasons[choice["index"]] = choice["finish_reason"]
        if usage := event.get("usage"):
            self._usage = _usage(usage)
        self.last_id = event.get("event_id", self.last_id)

    def _read(self, data: str) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise unreachable(error, self._request_id) from None
        if not isinstance(event, dict) or not ("error" in event or "choices" in event):
            raise unreachable(ValueError(f"not an event: {data[:80]}"), self._request_id)
        return event

    def _fresh(self, choice: int, text: str) -> str:
        """Return the undelivered part of `text`, which is next in the stream. Raises ReplyConflict."""
        known, begin = self._texts.setdefault(choice, ""), self._at.get(choice, 0)
        overlap = known[begin : begin + len(text)]
        if not text.startswith(overlap):
            raise conflict(f"choice {choice}: {overlap!r} was delivered and is now {text!r}", self._request_id)
        self._at[choice] = begin + len(text)
        fresh = text[len(overlap) :]
        self._texts[choice] = known + fresh
        return fresh

    def _fresh_logprobs(self, choice: int, told: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
        """Return the log probabilities of tokens that were not delivered yet."""
        if not told:
            return ()
        known, begin = self._logprobs.setdefault(choice, []), self._logprobs_at.get(choice, 0)
        all_told = tuple(of_chunk(told))
        self._logprobs_at[choice] = begin + len(all_told)
        fresh = all_told[max(0, len(known) - begin) :]
        known += fresh
        return fresh

    def _result(self) -> Result:
        for choice, text in self._texts.items():
            if self._at.get(choice, 0) < len(text):
                raise conflict(f"choice {choice} is now shorter than what was delivered", self._request_id)
        if self._usage is None:
            raise unreachable(ValueError("the stream ended without its token counts"), self._request_id)
        numbers = range(max(self._reasons, default=0) + 1)
        return Result(self._request_id, tuple(map(self._whole, numbers)), self._usage, self._prompt_logprobs)

    def _whole(self, number: int) -> Choice:
        logprobs = tuple(self._logprobs.get(number, ()))
        return Choice(self._texts.get(number, ""), (), self._reasons.get(number), logprobs)

    def _error(self, error: dict[str, Any]) -> ClientError | Passing:
        code, message = str(error.get("code")), str(error.get("message"))
        if code == ErrorCode.LOST:
            self.forgotten()
            return Passing(Lost(message, code=code, request_id=self._request_id))
        if code in PASSING_CODES:
            return Passing(Unavailable(message, code=code, request_id=self._request_id))
        return failure(code, message, request_id=self._request_id, field=error.get("param"))


def _usage(told: dict[str, Any]) -> Usage:
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(told["prompt_tokens"], told["completion_tokens"], cached)
