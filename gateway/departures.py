"""What happens to a request whose client has gone."""

import asyncio
import time
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from broker.errors import BrokerError
from gateway.cancelling import cancel_request
from gateway.log import log_event

if TYPE_CHECKING:
    from gateway.service import Gateway

_PATIENCE_S = 60.0
"""How long a Redis that is away is waited for."""


class Departures:
    """Cancels a request after a grace period in which no reader came back, on this or any other gateway.

    A gateway that stops forgets its departures: stopping is not cancelling.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._tasks: set[asyncio.Task[None]] = set()

    def left(self, request_id: str, *, cancels: bool) -> None:
        """A reader of the request has gone before the reply's end."""
        log_event("disconnected", request=request_id, on_disconnect="cancel" if cancels else "continue")
        task = asyncio.create_task(self._depart(request_id, cancels), name=f"departure {request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Forget all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _depart(self, request_id: str, cancels: bool) -> None:
        try:
            await self._gateway.readers.detach(request_id)
        except (BrokerError, ResponseError) as error:
            log_event("reader mark left behind", request=request_id, why=error)
        if cancels:
            await self._grace()
            await self._cancel_unless_read(request_id)

    async def _grace(self) -> None:
        await asyncio.sleep(self._gateway.settings.disconnect_grace_s)

    async def _cancel_unless_read(self, request_id: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await self._gateway.redis.wait(until)
                if await self._gateway.readers.anyone(request_id):
                    log_event("came back", request=request_id)
                elif await cancel_request(self._gateway, request_id):
                    log_event("cancelled", request=request_id, why="disconnect")
                return
            except (BrokerError, ResponseError) as error:
                if time.monotonic() >= until:
                    log_event("not cancelled", request=request_id, why=error)
                    return
                await asyncio.sleep(0.2)
