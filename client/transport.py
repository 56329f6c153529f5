"""The interface of a transport to the service; one is over HTTP, one over Redis."""

from collections.abc import AsyncGenerator
from typing import Protocol

from orcastream.client.request import Asked, Prompt
from orcastream.client.result import Delta, Result


class Accepted:
    """The service has the request, and keeps it."""


Event = Accepted | Delta | Result


class Transport(Protocol):
    """Carries requests to the service, and their answers back, through failures in between."""

    def request_id(self, prompt: Prompt, own: str | None) -> str:
        """Return the id of a request in the service; `own` is the caller's id. Raises InvalidRequest."""

    def events(self, asked: Asked) -> AsyncGenerator[Event]:
        """Yield Accepted once, then new parts, and the Result at the end; each part of the answer once.

        Posts the request at the first step. Raises ClientError. Different tasks may advance it one after another, so it
        holds no timeout across a yield.
        """

    async def cancel(self, request_id: str) -> bool:
        """Cancel a request; return False if it has ended or is unknown. Raises ClientError."""

    async def close(self) -> None:
        """Close all connections."""
