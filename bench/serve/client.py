"""A client of a gateway: it sends a request and follows the stream to its end."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.serve.http_pool import HttpPool
from orcastream.bench.workloads import SampleRequest
from orcastream.client.sse import SseParser

_DONE = "[DONE]"
_OK = 200
LOST = "cut off"
"""The stream ended without its last line."""
UNCOUNTED = "no usage"
"""The answer's number of tokens was not reported, so it has no token rates."""
UNREADABLE = "unreadable"
"""An event does not conform to the API."""


class Client:
    """A client of one gateway, for any number of concurrent requests. Use as an async context manager.

    `tenant_keys`: the API keys of tenants by name; requests of any other tenant use `api_key`. `objectives` accompany
    every request, for policies that use them.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        tenant_keys: Mapping[str, str] | None = None,
        objectives: Objectives | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._model = model
        self._api_key = api_key
        self._tenant_keys = dict(tenant_keys or {})
        self._targets = _targets(objectives or Objectives())
        self._timeout_s = timeout_s
        self._http = HttpPool(url)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._http.close()

    async def ask(self, request: SampleRequest, arrived_s: float | None = None) -> Outcome:
        """Return the outcome, which includes errors; they are not raised. `arrived_s`: when the request was due."""
        outcome = Outcome(request, time.monotonic() if arrived_s is None else arrived_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(outcome)
        except TimeoutError:
            outcome.error = "no end in time"
        except OSError as error:
            outcome.error = f"connection: {type(error).__name__}"
        return outcome

    async def _stream(self, outcome: Outcome) -> None:
        path, body = self._body(outcome.request)
        headers = self._headers(outcome.request.tenant)
        async with self._http.post(path, body, headers) as answer:
            if (status := await answer.status()) != _OK:
                outcome.error = _refusal(status, await answer.read())
                return
            parser = SseParser()
            async for line in answer.lines():
                event = parser.feed(line)
                if event == _DONE:
                    outcome.ended_s = time.monotonic()
                elif event is not None:
                    _take(outcome, event)
        if outcome.ended_s is None and outcome.error is None:
            outcome.error = LOST
        if outcome.error is None and not outcome.has_usage:
            outcome.error = UNCOUNTED

    def _headers(self, tenant: str) -> dict[str, str]:
        key = self._tenant_keys.get(tenant, self._api_key)
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _body(self, request: SampleRequest) -> tuple[str, dict[str, Any]]:
        """Return path and body: a chat for text, a completion of exact length for token ids."""
        body: dict[str, Any] = {
            "model": self._model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": request.priority_class,
            **self._targets,
        }
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if isinstance(request.prompt, str):
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": request.prompt}]}
        return "/v1/completions", {**body, "prompt": list(request.prompt), "ignore_eos": True}


def _targets(objectives: Objectives) -> dict[str, float]:
    """Return the objectives as fields of a request's body."""
    named = {"ttft_slo_ms": objectives.ttft_s, "tbt_slo_ms": objectives.tbt_s}
    return {name: seconds * 1000 for name, seconds in named.items() if seconds is not None}


def _take(outcome: Outcome, event: str) -> None:
    try:
        _read(outcome, json.loads(event))
    except (ValueError, KeyError, TypeError, AttributeError):
        outcome.error = UNREADABLE


def _count(usage: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens. Raises ValueError if the value is not one."""
    if not (isinstance(value := usage[name], int) and value >= 0):
        raise ValueError(f"{name}: {value!r}")
    return value


def _read(outcome: Outcome, event: Mapping[str, Any]) -> None:
    if "error" in event:
        outcome.error = f"in the stream: {event['error'].get('code')}"
    if served_by := event.get("served_by"):
        outcome.workers.append(served_by["worker"])
    for choice in event.get("choices", ()):
        content = choice["text"] if isinstance(outcome.request.prompt, tuple) else choice["delta"].get("content")
        reason = choice.get("finish_reason")
        if content or (reason and not outcome.pieces_s):  # an answer of special tokens has no text
            outcome.pieces_s.append(time.monotonic())
            outcome.text += content or ""
        outcome.finish_reason = reason or outcome.finish_reason
    if usage := event.get("usage"):
        outcome.tokens, outcome.prompt_tokens = (_count(usage, f"{kind}_tokens") for kind in ("completion", "prompt"))
        if (details := usage.get("prompt_tokens_details")) and details.get("cached_tokens") is not None:
            outcome.cached_tokens = _count(details, "cached_tokens")
        outcome.has_usage = True


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
