"""A pool of connections to one gateway, without a limit."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from orcastream.bench.serve.http_connection import HttpConnection

_CONNECT_S = 10.0
_IDLE_S = 5.0
"""A connection idle for longer is not reused: the gateway may be closing it."""


class HttpPool:
    """A client that posts JSON to an http or https URL; ValueError for others. Use as an async context manager."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: got {url!r}, allowed: an http:// or https:// URL")
        self._host, self._netloc, self._path = parts.hostname, parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[tuple[float, HttpConnection]] = []

    async def __aenter__(self) -> "HttpPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop()[1].close()

    @asynccontextmanager
    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[HttpConnection]:
        """Send a request; yield its connection while the answer is read. Raises OSError."""
        raw = json.dumps(body, separators=(",", ":")).encode()
        fields = {
            "Host": self._netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(raw)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        connection = await self._connection()
        try:
            connection.ask(f"POST {self._path}{path} HTTP/1.1\r\n{head}\r\n".encode() + raw)
            yield connection
        finally:
            if connection.is_free:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.close()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            since_s, connection = self._idle.pop()
            if connection.is_free and time.monotonic() - since_s < _IDLE_S:
                return connection
            connection.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(HttpConnection, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise ConnectionError(f"no connection to {self._netloc} within {_CONNECT_S:g} s") from None
        return connection
