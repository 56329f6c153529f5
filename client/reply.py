"""One request and its answer, for asyncio."""

from contextlib import suppress
from typing import Self

from orcastream.client.errors import ClientError
from orcastream.client.request import Asked
from orcastream.client.result import Delta, Result
from orcastream.client.transport import Accepted, Transport


class AsyncReply:
    """An async iterator of new parts; ends with the answer. Its first use posts the request.

    Only one task at a time may use it, except for `cancel`. Once failed, it raises the same ClientError on every use.
    """

    def __init__(self, transport: Transport, asked: Asked) -> None:
        self._transport = transport
        self._asked = asked
        self._events = transport.events(asked)
        self._accepted = False
        self._result: Result | None = None
        self._failure: ClientError | None = None

    @property
    def id(self) -> str:
        """The request's id in the service."""
        return self._asked.id

    async def accepted(self) -> None:
        """Return once the service has the request and keeps it, whatever happens to this client."""
        if not self._accepted and self._failure is None:
            await self._next()
        if self._failure is not None:
            raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while self._result is None:
            event = await self._next()
            if isinstance(event, Delta):
                return event
        raise StopAsyncIteration

    async def result(self) -> Result:
        """Return the whole answer, including parts that were iterated over."""
        async for _ in self:
            pass
        assert self._result is not None
        return self._result

    async def cancel(self) -> bool:
        """Cancel the request: an iterating task gets Cancelled. Return False if it has ended, or was never posted."""
        return await self._transport.cancel(self.id)

    async def aclose(self) -> None:
        """Stop reading.

        Over Redis the request continues; over HTTP `on_disconnect` applies, so it is canceled soon by default.
        """
        with suppress(RuntimeError):  # another task is reading: closing the transport ends it
            await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _next(self) -> Accepted | Delta | Result:
        if self._failure is not None:
            raise self._failure
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self._failure = ClientError("The reply was closed before its end.", code="closed", request_id=self.id)
            raise self._failure from None
        except ClientError as failure:
            self._failure = failure
            raise
        self._accepted = True
        if isinstance(event, Result):
            self._result = event
        return event
