"""GET /console/events: what the workers and the queue do, as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from orcastream.gateway.admission.query import check_query
from orcastream.gateway.console.feed import StatsFeed, Told, Viewer
from orcastream.gateway.errors import gateway_stopping
from orcastream.gateway.replies.sse import KEEP_ALIVE, EventStream, event, head_of_stream
from orcastream.schemas.stats import Stay

if TYPE_CHECKING:
    from orcastream.gateway.service import Gateway

_LOOK_S = 1.0
"""Maximum time between a stream's checks whether the gateway stops."""


class ConsoleEvents:
    """Continues after `Last-Event-ID`. Requests of other tenants are shown without their ids."""

    def __init__(self, gateway: "Gateway", feed: StatsFeed) -> None:
        self._gateway = gateway
        self._feed = feed

    async def get(self, request: Request) -> Response:
        """Stream until the client leaves or the gateway stops."""
        tenant = self._gateway.tenants.of(request.headers).tenant
        check_query(request)
        if self._gateway.shutdown.stopping:
            raise gateway_stopping()
        if request.method == "HEAD":
            return head_of_stream()
        stack = AsyncExitStack()
        viewer = await stack.enter_async_context(self._feed.watching(request.headers.get("last-event-id", "")))

        async def closed(*, left: bool) -> None:
            await stack.aclose()

        return EventStream(self._events(viewer, tenant), closed=closed)

    async def _events(self, viewer: Viewer, tenant: str) -> AsyncGenerator[bytes]:
        silent_s = 0.0
        while not self._gateway.shutdown.stopping:
            told = await viewer.take(_LOOK_S)
            silent_s = 0.0 if told else silent_s + _LOOK_S
            if told:
                yield b"".join(self._event(one, tenant) for one in told)
            elif silent_s >= self._gateway.settings.keep_alive_s:
                silent_s = 0.0
                yield KEEP_ALIVE

    def _event(self, told: Told, tenant: str) -> bytes:
        if told.stats is None:
            return event(told.other or {})
        stays = [self._shown(stay, tenant) for stay in told.stats["stays"]]
        return b"id: %b\n" % told.entry_id.encode() + event({"type": "worker", **told.stats, "stays": stays})

    def _shown(self, stay: Stay, tenant: str) -> dict[str, Any]:
        """Return a stay as `tenant` may see it: `key` links the stays of one request without identifying it."""
        own = stay["tenant"] == tenant
        name = self._gateway.models.default.ids.shown(stay["id"], tenant) if own else stay["id"]
        key = sha256(name.encode()).hexdigest()[:12]
        return {**stay, "key": key, "id": name if own else "", "tenant": tenant if own else ""}
