"""Retries: where, after which pause, and until when."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from orcastream.broker.back_off import BackOff
from orcastream.client.errors import UNREACHABLE, ClientError, QueueFull, Unavailable, failure
from orcastream.schemas.errors import ErrorCode

_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 5.0
_TRY_AGAIN: Final = (408, 425)
_FAULT: Final = 500
PASSING_CODES: Final = frozenset(
    {
        "gateway_stopping",
        "no_worker",
        "redis_unavailable",
        "unavailable",
        "internal_error",
        "api_keys_unknown",
        "not_on_disk",
    }
)
"""A gateway's codes for passing conditions; all others concern the request and are final."""


_ENDS: Final = frozenset(map(str, ErrorCode))


class Passing(Exception):
    """A failure that the next attempt may not have, `retry_after_s` from now at the earliest."""

    def __init__(self, error: ClientError, retry_after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


class Attempts:
    """One request's attempts: the next gateway after each failure, growing pauses, at most `patience_s` of failures."""

    def __init__(self, urls: Sequence[str], patience_s: float, closing: asyncio.Event | None = None) -> None:
        """`closing`: event that cuts every pause short."""
        self._urls = urls
        self._patience_s = patience_s
        self._closing = closing or asyncio.Event()
        self._number = 0
        self._back_off = BackOff(_FIRST_PAUSE_S, _MOST_PAUSE_S)
        self._failing_since: float | None = None

    @property
    def url(self) -> str:
        """The gateway to ask now."""
        return self._urls[self._number % len(self._urls)]

    def connected(self) -> None:
        """A gateway serves the request: patience starts anew with the next failure."""
        self._failing_since = None

    def advanced(self) -> None:
        """More of the answer arrived: pauses start small again.

        Acceptance alone does not count, as it may repeat forever.
        """
        self._back_off.succeeded()

    async def failed(self, passing: Passing) -> None:
        """Wait until the next attempt is due. Raises the failure's error if there is to be none."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        pause_s = max(self._back_off.failed(), passing.retry_after_s)
        if now + pause_s - self._failing_since > self._patience_s:
            raise passing.error from None
        self._number += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closing.wait()


def unreachable(error: Exception, request_id: str) -> Passing:
    """Return the failure of an unreachable gateway or a broken connection."""
    message = f"The gateway cannot be reached: {error or type(error).__name__}"
    return Passing(Unavailable(message, code=UNREACHABLE, request_id=request_id))


def refusal(response: httpx.Response, request_id: str) -> Exception:
    """Return the meaning of a complete response other than 200: Passing, or a ClientError."""
    told = _told(response)
    code = str(told.get("code") or f"http_{response.status_code}")
    message = str(told.get("message") or f"HTTP {response.status_code} {response.reason_phrase}")
    status, field = response.status_code, told.get("param")
    retry_after_s = _retry_after_s(response.headers)
    if status == httpx.codes.TOO_MANY_REQUESTS:
        full = QueueFull(message, code=code, request_id=request_id, status=status)
        return Passing(full, retry_after_s)
    is_final = code in _ENDS or response.headers.get("x-should-retry") == "false"
    if (status >= _FAULT or status in _TRY_AGAIN) and not is_final:
        return Passing(Unavailable(message, code=code, request_id=request_id, status=status), retry_after_s)
    return failure(code, message, request_id=request_id, field=None if field is None else str(field), status=status)


def _told(response: httpx.Response) -> dict[str, Any]:
    """Return a gateway's error object; empty if something in front of it has answered."""
    try:
        error = response.json()["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _retry_after_s(headers: httpx.Headers) -> float:
    """Return the seconds from now, from either form in RFC 9110; 0 without a header.

    A date counts from the response's own, if it has one: this host's clock may be wrong.
    """
    after = headers.get("Retry-After", "")
    if after.isascii() and after.isdigit():
        return float(after)
    at = _date(after)
    if at is None:
        return 0.0
    return max(0.0, (at - (_date(headers.get("Date", "")) or datetime.now(UTC))).total_seconds())


def _date(header: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)
