"""One question sent to a gateway, its streamed answer, and the timings."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from orcastream.client.sse import SseParser

_DONE = "[DONE]"


@dataclass
class Answer:
    """The answer to a question so far. Times are readings of a monotonic clock in seconds."""

    question: str
    expected: str
    text: str = ""
    workers: list[str] = field(default_factory=list)
    """The workers that served it, in order; more than one after a takeover."""
    num_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    asked_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    ended: bool = False

    @property
    def correct(self) -> bool:
        """Whether the text matches the expected one exactly."""
        return self.error is None and self.text.strip() == self.expected

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_s is None else self.first_s - self.asked_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens; None for fewer than two."""
        if self.first_s is None or self.last_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens divided by the time from the question to the last token."""
        if self.last_s is None or not self.num_tokens:
            return None
        return self.num_tokens / (self.last_s - self.asked_s)

    async def stream(self, client: httpx.AsyncClient, model: str) -> None:
        """Ask, and fill in the fields while the answer streams; a failure ends up in `error`."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": self.question}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self.asked_s = time.monotonic()
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    self.error = f"{response.status_code}: {(await response.aread()).decode(errors='replace')}"
                    return
                parser = SseParser()
                async for line in response.aiter_lines():
                    self._take(parser.feed(line))
        except httpx.HTTPError as error:
            self.error = str(error) or type(error).__name__
        finally:
            self.ended = True

    def _take(self, event: str | None) -> None:
        if event is not None and event != _DONE:
            self._take_data(json.loads(event))

    def _take_data(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = str(event["error"].get("message", event["error"]))
        if served_by := event.get("served_by"):
            self.workers.append(served_by["worker"])
        for choice in event.get("choices", ()):
            if content := choice["delta"].get("content"):
                self.last_s = time.monotonic()
                self.first_s = self.first_s or self.last_s
                self.text += content
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]
