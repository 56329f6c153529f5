"""The id in `X-Request-Id`, which every answer has, and which handlers give by `name_request` alone."""

from typing import Any, Final
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

REQUEST_ID: Final = "X-Request-Id"
_KEY: Final = "orcastream.request_id"
"""Key in the scope of a request."""


def new_request_id() -> str:
    """Return an id for an answer to something other than a request in the queue."""
    return f"req-{uuid4().hex}"


def name_request(scope: Scope, request_id: str) -> None:
    """Let the answer, whatever it will be, have this id."""
    scope[_KEY] = request_id


def request_id_of(scope: Scope) -> str:
    """Return the id that the answer will have: the request's own if it is named, otherwise a new one."""
    if _KEY not in scope:
        name_request(scope, new_request_id())
    named: Any = scope[_KEY]
    return str(named)


def with_request_id(scope: Scope, send: Send) -> Send:
    """Return `send`, which adds the id to the answer."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[REQUEST_ID] = request_id_of(scope)
        await send(message)

    return send_with_id
