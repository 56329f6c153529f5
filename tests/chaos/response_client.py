"""A client of /v1/responses: it reads events by their sequence numbers, on any gateway that answers."""

import json
import time
from typing import Any

import httpx

from tests.chaos import wire
from tests.chaos.http_client import FINAL, Left, Reply

_ENDS = {"response.completed": "stop", "response.incomplete": "length"}


class ResponseReply(Reply):
    """One client's view of one stored response, as `Reply`."""

    _number = -1
    """Of the newest event."""

    def _body(self) -> dict[str, Any]:
        payload = dict(self._seen.payload)
        return {
            **{name: payload[name] for name in payload if name != "max_tokens"},
            "max_output_tokens": payload["max_tokens"],
            "model": wire.MODEL,
            "stream": True,
            "request_id": self._seen.id,
            "priority": self._priority_class,
            "timeout": self._timeout_s,
        }

    async def _post(self) -> None:
        seen = self._seen
        seen.posted_at = seen.posted_at or time.monotonic()
        async with self._client.send("POST", f"{self._url}/v1/responses", json=self._body()) as response:
            if response.status_code == httpx.codes.OK:
                seen.accept()
                await self._read_events(response)
            else:
                await self._refused(response)

    async def _resume(self) -> None:
        after = f"&starting_after={self._number}" if self._number >= 0 else ""
        url = f"{self._url}/v1/responses/{self._seen.id}?stream=true{after}"
        async with self._client.send("GET", url) as response:
            if response.status_code == httpx.codes.OK:
                await self._read_events(response)
            else:
                await self._refused(response)

    def _take(self, data: str) -> None:
        seen, event = self._seen, json.loads(data)
        kind, number = event["type"], event["sequence_number"]
        if kind == "error":
            if event["code"] in FINAL:
                seen.end(event["code"])
            return
        if seen.ended is not None or number != self._number + 1:
            missing = seen.ended is None and number > self._number
            detail = f"event {number}, {kind}, after {self._number}, {seen.ended}"
            seen.problems.append(("lost" if missing else "repeated", detail))
        self._number = number
        if kind == "response.output_text.delta":
            seen.texts[0] = seen.texts.get(0, "") + event["delta"]
            self.num_events += 1
        elif kind in _ENDS:
            self._take_end(kind, event["response"])
        elif kind == "response.failed":
            seen.end(event["response"]["error"]["type"])
        if seen.ended is None and self._leave_after is not None and self.num_events >= self._leave_after:
            raise Left

    def _take_end(self, kind: str, response: dict[str, Any]) -> None:
        """Take the whole response, which says everything once more."""
        seen = self._seen
        said = "".join(part["text"] for item in response["output"] for part in item["content"])
        if said != seen.texts.get(0, ""):
            seen.problems.append(("changed", f"its deltas say {seen.texts.get(0)!r}, its end {said!r}"))
        seen.finish_reasons = {0: _ENDS[kind]}
        usage = response["usage"]
        seen.usage = {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
        seen.end("finished")
