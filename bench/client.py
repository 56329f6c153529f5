"""One client of a gateway: asks a question and follows the stream to its end."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from bench.outcome import Outcome
from bench.workload import Question
from cli.sse import ServedBy, SseParser

_DONE = "[DONE]"
_CONNECT_S = 10.0
LOST = "cut off"
"""The stream ended without its last line."""
UNREADABLE = "unreadable"
"""An event is none of those that the API describes."""


class Client:
    """Asks one gateway; any number of requests at once. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
            transport=transport,
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, question: Question, arrived_s: float | None = None) -> Outcome:
        """The outcome, whatever it is: errors stand in it and are not raised. `arrived_s`: when it was due."""
        outcome = Outcome(question, time.monotonic() if arrived_s is None else arrived_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(outcome)
        except TimeoutError:
            outcome.error = "no end in time"
        except httpx.HTTPError as error:
            outcome.error = f"connection: {type(error).__name__}"
        return outcome

    async def _stream(self, outcome: Outcome) -> None:
        async with self._http.stream("POST", "/v1/chat/completions", json=self._body(outcome.question)) as response:
            if response.status_code != httpx.codes.OK:
                outcome.error = _refusal(response.status_code, await response.aread())
                return
            parser = SseParser()
            async for line in response.aiter_lines():
                event = parser.feed(line)
                if isinstance(event, ServedBy):
                    outcome.workers.append(event.worker)
                elif event == _DONE:
                    outcome.ended_s = time.monotonic()
                elif event is not None:
                    _take(outcome, event)
        if outcome.ended_s is None and outcome.error is None:
            outcome.error = LOST

    def _body(self, question: Question) -> dict[str, Any]:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question.text}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body if question.max_tokens is None else {**body, "max_tokens": question.max_tokens}


def _take(outcome: Outcome, event: str) -> None:
    try:
        _read(outcome, json.loads(event))
    except (ValueError, KeyError, TypeError, AttributeError):
        outcome.error = UNREADABLE


def _read(outcome: Outcome, event: Mapping[str, Any]) -> None:
    if "error" in event:
        outcome.error = f"in the stream: {event['error'].get('code')}"
    for choice in event.get("choices", ()):
        if content := choice["delta"].get("content"):
            outcome.pieces_s.append(time.monotonic())
            outcome.text += content
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
    if usage := event.get("usage"):
        outcome.tokens = usage["completion_tokens"]


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
