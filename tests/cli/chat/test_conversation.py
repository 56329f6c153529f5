"""A conversation on a scripted transport."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orcastream.cli.chat.conversation import Conversation
from orcastream.client import AsyncClient
from orcastream.client.gateways import Gateways
from orcastream.client.request import Asked


async def test_a_question_that_the_gateway_has_not_confirmed_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the queue: without this it would wait there for the grace after a lost connection."""
    posted, cancelled = asyncio.Event(), []

    async def events(_: Gateways, asked: Asked) -> AsyncIterator[object]:
        posted.set()
        await asyncio.Event().wait()
        yield None

    async def cancel(_: Gateways, request_id: str) -> bool:
        cancelled.append(request_id)
        return True

    monkeypatch.setattr(Gateways, "events", events)
    monkeypatch.setattr(Gateways, "cancel", cancel)
    async with AsyncClient("http://gateway", "tiny") as client:
        conversation = Conversation(client, tell=print)
        asking = asyncio.create_task(conversation.ask("Hello", print))
        await posted.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(cancelled) == 1
    assert conversation.num_turns == 0
