"""Transport over HTTP: uses whichever gateway answers, and switches to another when one fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx

from orcastream.client.attempts import Attempts, Passing, refusal, unreachable
from orcastream.client.body import body_of
from orcastream.client.errors import ClientError, Refused, closed
from orcastream.client.request import Asked, Prompt, is_chat
from orcastream.client.result import Result
from orcastream.client.sse import SseParser
from orcastream.client.streamed_answer import StreamedAnswer
from orcastream.client.transport import Accepted, Event
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import check_id
from orcastream.schemas.limits import MAX_ID_LENGTH

_COMPLETION, _CHAT = "cmpl-", "chatcmpl-"
"""Prefixes of a gateway's ids, which determine the form of an answer."""
_SILENCE_S: Final = 60.0
"""A connection without a byte for this long is dead: a gateway writes an empty line every `keep_alive_s` (15 s)."""
_CONNECT_S: Final = 5.0


class Gateways:
    """See Transport.

    Requests start at the gateways in rotation; after a failure, a request moves to the next gateway.
    """

    def __init__(self, urls: Sequence[str], model: str, *, api_key: str | None, patience_s: float) -> None:
        self._urls = [checked_url(url) for url in urls]
        self._model = model
        self._patience_s = patience_s
        self._begun = 0
        self._closing = asyncio.Event()
        self._http = httpx.AsyncClient(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    def request_id(self, prompt: Prompt, own: str | None) -> str:
        """See Transport: the id with the prefix that gateways put before a client's own."""
        prefix = _CHAT if is_chat(prompt) else _COMPLETION
        if own is None:
            return f"{prefix}{uuid4().hex}"
        request_id = own if check_id(own, "request_id").startswith(prefix) else f"{prefix}{own}"
        if len(request_id) > MAX_ID_LENGTH:
            raise InvalidRequest("request_id", own, f"at most {MAX_ID_LENGTH - len(prefix)} characters")
        return request_id

    async def events(self, asked: Asked) -> AsyncGenerator[Event]:
        """See Transport."""
        answer = StreamedAnswer(asked.id, asked.parameters.get("prompt_logprobs"))
        attempts = self._attempts()
        accepted = False
        while True:
            self._check_open(asked.id)
            try:
                async with aclosing(self._attempt(asked, answer, attempts.url)) as events:
                    async for event in events:
                        if isinstance(event, Accepted):
                            attempts.connected()
                            if accepted:
                                continue
                            accepted = True
                        else:
                            attempts.advanced()
                        yield event
                        if isinstance(event, Result):
                            return
            except Passing as passing:
                await attempts.failed(passing)

    async def cancel(self, request_id: str) -> bool:
        """See Transport."""
        attempts = self._attempts()
        while True:
            self._check_open(request_id)
            try:
                response = await self._http.delete(f"{attempts.url}/v1/requests/{quote(request_id)}")
                if response.status_code == httpx.codes.NOT_FOUND:
                    return False
                if response.status_code == httpx.codes.OK:
                    return bool(response.json()["cancelled"])
                raise refusal(response, request_id)
            except httpx.TransportError as error:
                await attempts.failed(unreachable(error, request_id))
            except Passing as passing:
                await attempts.failed(passing)

    async def close(self) -> None:
        """See Transport."""
        self._closing.set()
        await self._http.aclose()

    def _check_open(self, request_id: str) -> None:
        if self._closing.is_set():
            raise closed(request_id)

    def _attempts(self) -> Attempts:
        self._begun += 1
        first = self._begun % len(self._urls)
        return Attempts([*self._urls[first:], *self._urls[:first]], self._patience_s, self._closing)

    async def _attempt(self, asked: Asked, answer: StreamedAnswer, url: str) -> AsyncGenerator[Event]:
        """Post, or resume reading, at one gateway; return only after the Result. Raises Passing, ClientError."""
        try:
            async with self._http.stream(**self._next_request(asked, answer, url)) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    if response.status_code == httpx.codes.NOT_FOUND and answer.accepted:
                        answer.forgotten()
                        raise Passing(_forgotten(asked.id))
                    raise refusal(response, asked.id)
                answer.begins()
                yield Accepted()
                parser = SseParser()
                async for line in response.aiter_lines():
                    data = parser.feed(line)
                    if data is not None:
                        for event in answer.take(data):
                            yield event
                            if isinstance(event, Result):
                                return
        except httpx.TransportError as error:
            raise unreachable(error, asked.id) from None
        raise unreachable(ConnectionError("the stream ended before the answer"), asked.id)

    def _next_request(self, asked: Asked, answer: StreamedAnswer, url: str) -> dict[str, Any]:
        if answer.accepted:
            headers = {"Last-Event-ID": answer.last_id} if answer.last_id else {}
            address = f"{url}/v1/requests/{quote(asked.id)}/events?include_usage=true"
            return {"method": "GET", "url": address, "headers": headers}
        path = "/v1/chat/completions" if asked.is_chat else "/v1/completions"
        headers = {"Idempotency-Key": asked.id, "Content-Type": "application/json"}
        body = json.dumps(body_of(asked, self._model), ensure_ascii=False, separators=(",", ":"))
        content = body.encode(errors="backslashreplace")  # invalid text arrives, too, and is refused by name
        return {"method": "POST", "url": f"{url}{path}", "headers": headers, "content": content}


def _forgotten(request_id: str) -> ClientError:
    message = f"The gateways no longer know the request {request_id!r}."
    return Refused(message, code="request_not_found", request_id=request_id, status=404)


def checked_url(url: str) -> str:
    """Return a gateway's base URL. Raises InvalidRequest if it is not a valid one."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
        raise InvalidRequest("urls", url, "http://HOST[:PORT][/PATH], or the same with https://")
    return url.rstrip("/")
