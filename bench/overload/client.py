"""A cheap client for streamed completions: it only notes when an answer's first piece arrives, and whether the answer
is complete.
"""

import asyncio
import json
import time

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.serve.http_connection import HttpConnection
from orcastream.bench.serve.http_pool import HttpPool
from orcastream.bench.workloads import SampleRequest

_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_OK = 200
_MARGIN_S = 30.0
"""Maximum wait for a request after its deadline."""


class LeanClient:
    """A client of one gateway, for any number of concurrent requests."""

    def __init__(self, http: HttpPool, model: str, deadline_s: float) -> None:
        self._http = http
        self._model = model
        self._deadline_s = deadline_s

    async def ask(self, request: SampleRequest, due_s: float) -> Outcome:
        """Return the outcome, which includes errors. `due_s`: the request's arrival by `time.monotonic()`."""
        outcome, sent_s = Outcome(request, due_s), time.monotonic()
        try:
            async with (
                asyncio.timeout(self._deadline_s + _MARGIN_S),
                self._http.post("/v1/completions", self._body(request)) as answer,
            ):
                if (status := await answer.status()) == _OK:
                    await self._read(answer, outcome)
                else:
                    outcome.error = f"{status} {json.loads(await answer.read())['error']['code']}"
                    outcome.refused_after_s = time.monotonic() - sent_s
        except TimeoutError:
            outcome.error = "no end in time"
        except OSError as error:
            outcome.error = f"connection: {type(error).__name__}"
        return outcome

    def _body(self, request: SampleRequest) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "timeout": self._deadline_s,
        }

    async def _read(self, answer: HttpConnection, outcome: Outcome) -> None:
        tail = b""
        async for piece in answer.pieces():
            if not outcome.pieces_s:
                outcome.pieces_s.append(time.monotonic())
            seen = tail + piece
            if _ERROR in seen:
                outcome.error = f"in the stream: {_code(seen)}"
            if _DONE in seen:
                outcome.ended_s = time.monotonic()
            tail = seen[-len(_ERROR) :]
        if outcome.ended_s is None and outcome.error is None:
            outcome.error = "cut off"


def _code(seen: bytes) -> str:
    return seen.partition(b'"code":')[2].partition(b"}")[0].strip(b' "').decode(errors="replace") or "unknown"
