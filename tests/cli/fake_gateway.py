"""A gateway for tests of its clients: answers chats from a list, with the events of the real one."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

Reply = Callable[[list[dict[str, str]]], Sequence[str]]
"""From the messages of a chat to the pieces of its answer."""


def gateway(reply: Reply, *, worker: str = "host-1-ab") -> httpx.MockTransport:
    """A transport that serves one model, `orca-demo`."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "orca-demo"}]})
        body = json.loads(request.content)
        if body["model"] != "orca-demo":
            return httpx.Response(404, json={"error": {"message": f"model: got {body['model']!r}"}})
        return httpx.Response(200, content=b"".join(_events(reply(body["messages"]), worker)))

    return httpx.MockTransport(handle)


def _events(pieces: Sequence[str], worker: str) -> Iterator[bytes]:
    opening = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    yield _event({**opening, "served_by": {"worker": worker, "epoch": 7}})
    for piece in pieces:
        yield b"\n"
        yield _event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
    yield _event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    yield _event({"choices": [], "usage": {"completion_tokens": len(pieces)}})
    yield b"data: [DONE]\n\n"


def _event(data: Any) -> bytes:
    return f"id: 1\ndata: {json.dumps(data)}\n\n".encode()
