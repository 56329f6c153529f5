"""What a way to the service has to do; one is over HTTP, one over Redis."""

from collections.abc import AsyncGenerator
from typing import Protocol

from orcastream.client.request import Asked, Prompt
from orcastream.client.result import Delta, Result


class Accepted:
    """The service has the request, and keeps it."""


Event = Accepted | Delta | Result


class Transport(Protocol):
    """Carries requests to the service, and their answers back, over whatever breaks in between."""

    def request_id(self, prompt: Prompt, own: str | None) -> str:
        """The id under which the service will know a request; `own` is the caller's. InvalidRequest."""

    def events(self, asked: Asked) -> AsyncGenerator[Event]:
        """Accepted once, then what is new, and the Result at the end; each part of the answer once.

        Posts the request at the first step. Raises ClientError. May be advanced from several tasks in turn: holds no
        timeout across a yield.
        """

    async def cancel(self, request_id: str) -> bool:
        """Cancel; False where the request has ended, or is not known. Raises ClientError."""

    async def close(self) -> None:
        """End all connections."""
