"""Refuses what pages of other origins ask for, unless cross-origin requests are set up."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orcastream.gateway.errors import ApiError

ANY: Final = "*"
METHODS: Final = ("GET", "POST", "DELETE")
EXPOSED_HEADERS: Final = ("Retry-After", "X-Request-Id", "X-Should-Retry")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_OWN_SITE: Final = ("same-origin", "none")
"""What browsers, and no script in them, say in Sec-Fetch-Site of requests that no other site has a part in."""


class OriginCheck:
    """ASGI middleware: 403 for an Origin that is neither the server's own nor allowed. Programs send none."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str], refused: Callable[[ApiError], None]) -> None:
        """`refused` is told of each refusal, before it is answered."""
        self._app = app
        self._allowed = frozenset(allowed)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or self._allows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            403,
            "Pages of this Origin may not use the gateway; the setting cors_origins names those that may.",
            code="foreign_origin",
        )
        self._refused(error)
        await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or ANY in self._allowed or origin in self._allowed:
            return True
        return headers.get("sec-fetch-site") in _OWN_SITE or _is_at(origin, headers.get("host", ""))


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin is the host that was asked, whatever the scheme: a proxy may have taken the encryption off."""
    scheme, _, authority = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    return default is not None and authority.lower().removesuffix(default) == host.lower().removesuffix(default)
