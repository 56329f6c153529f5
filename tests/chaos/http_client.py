"""A client of the OpenAI API that continues after broken connections, on any gateway that answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx

from tests.chaos import wire
from tests.chaos.record import Seen

_RETRY_S = 0.2
_TIMEOUT = httpx.Timeout(25.0, connect=2.0)
FINAL = frozenset(
    {"invalid_request", "expired", "cancelled", "lost", "dead_letter", "engine_error", "reply_conflict", "id_in_use"}
)
"""Codes that end a request; all others are passing."""


class Left(Exception):
    """The client closed its connection on purpose."""


class HttpClient:
    """The connections to both gateways, shared by all requests; a fault may break any of `open_streams`."""

    def __init__(self, urls: Sequence[str], rng: Random) -> None:
        self._urls = urls
        self._rng = rng
        self._http = httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT, limits=httpx.Limits(max_connections=None))
        self.open_streams: dict[str, asyncio.Event] = {}
        """By request: set it, and the client loses its connection."""
        self.num_refused = 0

    def any_url(self) -> str:
        """Return the URL of one of the gateways."""
        return self._rng.choice(self._urls)

    def other_url(self, url: str) -> str:
        """Return the URL of a gateway other than this one."""
        return next(other for other in self._urls if other != url)

    async def delete(self, request_id: str, until: float) -> bool | None:
        """Cancel; return whether it was in time, or None if no gateway confirmed it by `until` (monotonic)."""
        while time.monotonic() < until:
            try:
                response = await self._http.delete(f"{self.any_url()}/v1/requests/{request_id}")
                if response.status_code == httpx.codes.OK:
                    return bool(response.json()["cancelled"])
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_RETRY_S)
        return None

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def send(self, method: str, url: str, **more: Any) -> AsyncIterator[httpx.Response]:
        """Return a response whose body is read as it arrives."""
        async with self._http.stream(method, url, **more) as response:
            yield response


class Reply:
    """One client's view of one request: it asks, reads, loses its connection, asks again, until the reply has ended.

    Faults in what it reads go into `seen.problems`.
    """

    def __init__(self, client: HttpClient, seen: Seen, priority_class: str, timeout_s: float) -> None:
        self._client = client
        self._seen = seen
        self._timeout_s = timeout_s
        self._priority_class = priority_class
        self._url = client.any_url()
        self._last_id = ""
        self._counts: list[int] = []
        self.num_events = 0
        """Events with text, over all connections."""
        self._leave_after: int | None = None

    @property
    def url(self) -> str:
        """The gateway of the next attempt."""
        return self._url

    def move(self) -> None:
        """Switch to the other gateway."""
        self._url = self._client.other_url(self._url)

    async def read(self, *, leave_after: int | None = None, until: float) -> None:
        """Read to the reply's end, or raise Left after this number of further events. `until`: when to stop trying."""
        self._leave_after = None if leave_after is None else self.num_events + leave_after
        seen = self._seen
        while seen.ended is None and time.monotonic() < until:
            try:
                if seen.accepted and self._streams:
                    await self._resume()
                else:
                    await self._post()
            except (httpx.HTTPError, ConnectionResetError):
                self.move()
            if seen.ended is None:
                await asyncio.sleep(_RETRY_S)
        if seen.ended is None:
            seen.end("gave up")

    @property
    def _streams(self) -> bool:
        """Ranked choices are known only at the end, and are never streamed."""
        return self._seen.behaviour != "whole" and "best_of" not in self._seen.payload

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if "messages" in self._seen.payload else "/v1/completions"

    def _body(self) -> dict[str, Any]:
        """Return the payload under OpenAI's names."""
        payload, more = dict(self._seen.payload), dict[str, Any]()
        if constraint := payload.pop("constraint", None):
            schema = constraint.get("json_schema")
            more["structured_outputs"] = constraint if schema is None else {"json": json.loads(schema)}
        if bias := payload.pop("logit_bias", None):
            more["logit_bias"] = {str(token): value for token, value in bias}
        if self._streams:
            more["stream_options"] = {"include_usage": True}
        more["model"] = payload.pop("adapter", wire.MODEL)
        return {**payload, **more, **self._own}

    @property
    def _own(self) -> dict[str, Any]:
        """What the body says that is not OpenAI's, and whether the answer is streamed."""
        return {
            "stream": self._streams,
            "request_id": self._seen.id,
            "priority": self._priority_class,
            "timeout": self._timeout_s,
        }

    async def _post(self) -> None:
        """Ask; a repeat under the same id is not a second request."""
        seen = self._seen
        seen.posted_at = seen.posted_at or time.monotonic()
        async with self._client.send("POST", self._url + self._path, json=self._body()) as response:
            if response.status_code != httpx.codes.OK:
                await self._refused(response)
            elif self._streams:
                seen.accept()
                self._forget()
                await self._read_events(response)
            else:
                whole = json.loads(await response.aread())
                seen.accept()
                for choice in whole["choices"]:
                    self._take_choice(choice)
                seen.usage = whole["usage"]
                seen.end("finished")

    def _forget(self) -> None:
        """Begin to read from the start."""
        self._seen.forget_text()
        self._counts, self._last_id = [], ""

    async def _resume(self) -> None:
        """Resume after the last event; from the start if there was none."""
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        if not self._last_id:
            self._forget()
        await self._follow(f"/v1/requests/{self._seen.id}/events?include_usage=true", headers)

    async def _follow(self, path: str, headers: dict[str, str]) -> None:
        async with self._client.send("GET", self._url + path, headers=headers) as response:
            if response.status_code == httpx.codes.OK:
                await self._read_events(response)
            else:
                await self._refused(response)

    async def _refused(self, response: httpx.Response) -> None:
        body = await response.aread()
        code = (json.loads(body).get("error") or {}).get("code") if body.startswith(b"{") else None
        if response.status_code == httpx.codes.NOT_FOUND and self._seen.accepted:
            self._seen.problems.append(("lost", f"{self._url} knows nothing of a request that was accepted"))
            self._seen.end("unknown")
        elif code in FINAL:
            self._seen.accept()
            self._seen.end(str(code))
        else:
            if response.status_code not in (429, 503):
                self._seen.problems.append(("unasked", f"HTTP {response.status_code} {code}"))
            self._client.num_refused += 1
            self.move()

    async def _read_events(self, response: httpx.Response) -> None:
        """Take events until the end, a broken connection, or a fault that breaks the connection here."""
        broken = self._client.open_streams[self._seen.id] = asyncio.Event()
        breaking = asyncio.create_task(broken.wait())
        try:
            lines = response.aiter_lines()
            data = ""
            while True:
                reading = asyncio.ensure_future(anext(lines, None))
                await asyncio.wait((reading, breaking), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    raise ConnectionResetError
                line = reading.result()
                if line is None:
                    return
                name, _, value = line.partition(": ")
                if name == "data":
                    data = value
                elif not line and data:
                    self._take(data)
                    data = ""
        finally:
            breaking.cancel()
            self._client.open_streams.pop(self._seen.id, None)

    def _take(self, data: str) -> None:
        seen = self._seen
        if seen.ended is not None:
            seen.problems.append(("repeated", f"an event after the end: {data[:80]}"))
            return
        if data == "[DONE]":
            seen.end("finished")
            return
        event = json.loads(data)
        if "error" in event:
            if event["error"]["code"] in FINAL:
                seen.end(event["error"]["code"])
            elif event["error"]["code"] == "internal_error":
                seen.problems.append(("unasked", "internal_error in a stream"))
            return
        for choice in event["choices"]:
            self._take_choice(choice)
        seen.usage = event.get("usage") or seen.usage
        if "event_id" in event:
            self._take_id(event["event_id"])
            self.num_events += 1
            if self._leave_after is not None and self.num_events >= self._leave_after:
                raise Left

    def _take_choice(self, choice: dict[str, Any]) -> None:
        """Take a choice, or a part of one."""
        seen, index = self._seen, choice["index"]
        said = choice["text"] if "text" in choice else choice.get("delta", choice.get("message", {})).get("content")
        seen.texts[index] = seen.texts.get(index, "") + (said or "")
        if choice.get("finish_reason") is not None:
            seen.finish_reasons[index] = choice["finish_reason"]
        if choice.get("logprobs") is not None:
            more = len(choice["logprobs"]["token_logprobs"])
            seen.num_logprobs[index] = seen.num_logprobs.get(index, 0) + more

    def _take_id(self, event_id: str) -> None:
        """An id names the tokens delivered per choice: each event adds tokens, or the end of a choice."""
        counts = [int(count) for count in event_id.partition("-")[0].split(",")]
        known = self._counts + [0] * (len(counts) - len(self._counts))
        if any(new < old for new, old in zip(counts, known, strict=False)) or (
            counts == self._counts and "." not in event_id
        ):
            self._seen.problems.append(("repeated", f"an event for {counts} tokens after one for {self._counts}"))
        self._counts, self._last_id = counts, event_id
