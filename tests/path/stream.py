"""A client of a streamed completion that sees the raw events, and can resume after its connection is lost."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.patience import PATIENCE_S

Fault = Callable[["Stream"], None]


@dataclass
class Stream:
    """What a client has received so far: text, the workers that wrote it, the last event id."""

    text: str = ""
    workers: list[str] = field(default_factory=list)
    request_id: str = ""
    last_id: str = ""
    chunks: int = 0
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False

    def post(self, url: str, body: dict[str, Any], faults: dict[int, Fault]) -> "Stream":
        """Send the request and read to the end, or to a broken connection; trigger `faults` at the n-th chunk."""
        request = httpx.Request("POST", f"{url}/v1/completions", json={**body, "stream": True})
        return self._read(request, faults)

    def resume(self, url: str) -> "Stream":
        """Resume after the last event, on any gateway."""
        headers = {"Last-Event-ID": self.last_id}
        return self._read(httpx.Request("GET", f"{url}/v1/requests/{self.request_id}/events", headers=headers), {})

    def _read(self, request: httpx.Request, faults: dict[int, Fault]) -> "Stream":
        # Clients also run in threads, and proxy detection would read the environment while pytest writes to it.
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            response = client.send(request, stream=True)
            assert response.status_code == 200, response.read()
            self.request_id = response.headers.get("x-request-id", self.request_id)
            try:
                for line in response.iter_lines():
                    self._take(line, faults)
            except httpx.HTTPError:
                return self
            finally:
                response.close()
        return self

    def _take(self, line: str, faults: dict[int, Fault]) -> None:
        name, _, value = line.partition(": ")
        if name == "data" and value == "[DONE]":
            self.done = True
        elif name == "data":
            self._chunk(json.loads(value))
            self.chunks += 1
            if self.chunks in faults:
                faults[self.chunks](self)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.last_id = chunk.get("event_id", self.last_id)
        if served_by := chunk.get("served_by"):
            self.workers.append(served_by["worker"])
        for choice in chunk["choices"]:
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
