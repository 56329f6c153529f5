"""A client of /v1/responses: it reads events by their sequence numbers, on any gateway that answers."""

import json
from typing import Any

from tests.chaos import wire
from tests.chaos.http_client import FINAL, Left, Reply

_ENDS = {"response.completed": "stop", "response.incomplete": "length"}


class ResponseReply(Reply):
    """One client's view of one stored response, as `Reply`."""

    _number = -1
    """Of the newest event."""

    def _body(self) -> dict[str, Any]:
        payload = dict(self._seen.payload)
        payload["max_output_tokens"] = payload.pop("max_tokens")
        return {**payload, "model": wire.MODEL, **self._own}

    @property
    def _path(self) -> str:
        return "/v1/responses"

    def _forget(self) -> None:
        """Its events are counted from the first one on, also if they come again."""

    async def _resume(self) -> None:
        after = f"&starting_after={self._number}" if self._number >= 0 else ""
        await self._follow(f"/v1/responses/{self._seen.id}?stream=true{after}", {})

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
