"""The client for programs without asyncio: the same client on an event loop in its own thread."""

import ctypes
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Self, TypeVar, Unpack
from weakref import WeakSet

from anyio.from_thread import start_blocking_portal

from orcastream.client.async_client import DEFAULT_RETENTION_S, AsyncClient
from orcastream.client.errors import closed
from orcastream.client.reply import AsyncReply
from orcastream.client.request import Parameters, Prompt
from orcastream.client.result import Delta, Result
from orcastream.schemas.keys import DEFAULT_NAMESPACE, DEFAULT_TENANT, PriorityClass
from orcastream.text.tokenizer import Tokenizer

T = TypeVar("T")


class _Loop:
    """The event loop, in its own thread; `stop` runs `last` in it before it ends."""

    def __init__(self, last: Callable[[], Awaitable[None]]) -> None:
        self._pid = os.getpid()
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.callback(self._portal.call, last)
        self.is_open = True
        _LOOPS.add(self)

    def call(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns. Raises RuntimeError in a forked process, where nothing would ever run `step`."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"The client belongs to process {self._pid}, which was forked: make one in each process."
            )
        return self._portal.call(step)

    def keep(self) -> None:
        """In a forked process, keep the portal from closing: that would wait for a thread that does not exist there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._stack))

    def stop(self) -> None:
        """End the loop. No effect in a forked process, whose parent may still need everything."""
        self.is_open = False
        if os.getpid() == self._pid:
            self._stack.close()


_LOOPS: WeakSet[_Loop] = WeakSet()


def _keep_all() -> None:
    for loop in list(_LOOPS):
        loop.keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)


class Reply:
    """An iterator of new parts; see AsyncReply. `cancel` may be called from another thread."""

    def __init__(self, loop: _Loop, reply: AsyncReply) -> None:
        self._loop = loop
        self._reply = reply

    @property
    def id(self) -> str:
        """The request's id in the service."""
        return self._reply.id

    def accepted(self) -> None:
        """Return once the service has the request and keeps it, whatever happens to this client."""
        self._call(self._reply.accepted)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        try:
            return self._call(self._reply.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Result:
        """Return the whole answer, including parts that were iterated over."""
        return self._call(self._reply.result)

    def cancel(self) -> bool:
        """Cancel the request: an iterating thread gets Cancelled. Return False if it has ended, or was never posted."""
        return self._call(self._reply.cancel)

    def close(self) -> None:
        """Stop reading; see AsyncReply.aclose."""
        if self._loop.is_open:
            self._call(self._reply.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, step: Callable[[], Awaitable[T]]) -> T:
        if not self._loop.is_open:
            raise closed(self.id)
        return self._loop.call(step)


class Client:
    """`with Client(urls, model) as client: ...`; parameters as for AsyncClient. May be used by several threads."""

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str,
        *,
        patience_s: float = 60.0,
        api_key: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        tenant: str = DEFAULT_TENANT,
        tokenizer: Tokenizer | None = None,
        retention_s: float = DEFAULT_RETENTION_S,
        queue_lanes: int = 1,
    ) -> None:
        self._client = AsyncClient(
            urls,
            model,
            patience_s=patience_s,
            api_key=api_key,
            namespace=namespace,
            tenant=tenant,
            tokenizer=tokenizer,
            retention_s=retention_s,
            queue_lanes=queue_lanes,
        )
        self._loop = _Loop(self._client.aclose)

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str | None = None,
        priority: PriorityClass = "normal",
        timeout_s: float = 600.0,
        durable: bool = False,
        **parameters: Unpack[Parameters],
    ) -> Reply:
        """Return a reply to iterate over, or to get the whole answer from; see AsyncClient.generate."""
        reply = self._client.generate(
            prompt, request_id=request_id, priority=priority, timeout_s=timeout_s, durable=durable, **parameters
        )
        return Reply(self._loop, reply)

    def close(self) -> None:
        """Stop reading all replies; close all connections and end the thread. Idempotent."""
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
