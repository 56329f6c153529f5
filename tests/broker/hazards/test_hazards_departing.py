"""The hazard of clients that go and come back, with real gateways: they are who cancels."""

import pytest

from schemas.errors import ErrorCode
from tests.gateway.conftest import TEXT, Stage
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.gateway.test_departures import cancel_key, departed, ending, hold_grace, leave_after


async def test_hazard_20_cancel_on_disconnect_against_resume(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client leaves one gateway and comes back to another; the first one's grace period ends only then."""
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    grace_over = hold_grace(first, monkeypatch)
    request_id, seen = await leave_after(first, 3)
    headers = {"Last-Event-ID": seen[-1].last_id or ""}
    async with second.http().stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert first.gateway.departures._tasks, "the first gateway still means to cancel"
        grace_over.set()
        await departed(first)
        assert not await cancel_key(stage, request_id)
        await gate.open()
        rest = [event async for event in read(response)]
    assert joined(seen) + joined(rest) == TEXT


async def test_hazard_20_nobody_comes_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same departure cancels the request where its client stays away."""
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(4)))
    first, _ = await stage.gateway(), await stage.gateway()
    grace_over = hold_grace(first, monkeypatch)
    request_id, _ = await leave_after(first, 3)
    assert not await cancel_key(stage, request_id)
    grace_over.set()
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED
    assert await cancel_key(stage, request_id)
