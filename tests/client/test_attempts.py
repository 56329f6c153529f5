"""What a gateway's refusal means: whether and when to retry."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from orcastream.client import Cancelled, ClientError, QueueFull, Refused, ReplyExpired, Unavailable
from orcastream.client.attempts import Attempts, Passing, refusal


def told(status: int, code: str | None = None, param: str | None = None, **headers: str) -> Exception:
    body: dict[str, Any] = {"error": {"message": "words", "code": code, "param": param}}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal(httpx.Response(status, json=body, headers=names), "cmpl-1")


@pytest.mark.parametrize(
    ("status", "kind"), [(429, QueueFull), (503, Unavailable), (500, Unavailable), (408, Unavailable)]
)
def test_errors_that_pass(status: int, kind: type[ClientError]) -> None:
    passing = told(status, "some_code", Retry_After="7")
    assert isinstance(passing, Passing)
    assert type(passing.error) is kind
    assert (passing.retry_after_s, passing.error.status, passing.error.code) == (7, status, "some_code")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", Refused),
        (401, "invalid_api_key", Refused),
        (409, "cancelled", Cancelled),
        (410, "reply_expired", ReplyExpired),
        (500, "engine_error", ClientError),
    ],
)
def test_errors_that_are_final(status: int, code: str, kind: type[ClientError]) -> None:
    error = told(status, code, "temperature")
    assert isinstance(error, kind)
    assert (error.code, error.status, error.field, str(error)) == (code, status, "temperature", "words")


def test_a_gateway_may_say_that_a_retry_is_useless() -> None:
    assert isinstance(told(503, "anything", x_should_retry="false"), Refused)


def test_a_response_of_another_server_in_front_of_the_gateways() -> None:
    passing = refusal(httpx.Response(502, text="<html>Bad Gateway</html>"), "cmpl-1")
    assert isinstance(passing, Passing)
    assert (passing.error.code, passing.retry_after_s) == ("http_502", 0)
    assert isinstance(refusal(httpx.Response(403, json=["no"]), "cmpl-1"), Refused)


def test_retry_after_as_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    passing = told(503, "no_worker", Retry_After=later)
    assert isinstance(passing, Passing)
    assert 0 < passing.retry_after_s <= 100
    for nothing in ("soon", "-3", format_datetime(datetime(2000, 1, 1, tzinfo=UTC), usegmt=True)):
        passing = told(503, "no_worker", Retry_After=nothing)
        assert isinstance(passing, Passing)
        assert passing.retry_after_s == 0


@pytest.mark.parametrize("ahead", [timedelta(days=1), timedelta(days=-1)])
def test_a_date_counts_from_that_of_the_response(ahead: timedelta) -> None:
    """This host's clock may be wrong."""
    now = datetime.now(UTC) + ahead
    dates = {"Date": now, "Retry_After": now + timedelta(seconds=100)}
    passing = told(503, "no_worker", **{name: format_datetime(at, usegmt=True) for name, at in dates.items()})
    assert isinstance(passing, Passing)
    assert passing.retry_after_s == 100


async def test_gateways_alternate_and_retries_end() -> None:
    attempts = Attempts(["a", "b"], patience_s=0.5)
    full = QueueFull("full", code="queue_full")
    assert attempts.url == "a"
    await attempts.failed(Passing(full))
    assert attempts.url == "b"
    with pytest.raises(QueueFull):
        await attempts.failed(Passing(full, retry_after_s=3600))
    attempts.connected()
    attempts.advanced()
    await attempts.failed(Passing(full))
    assert attempts.url == "a"
