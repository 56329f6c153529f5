"""A request that waits for an adapter is forgotten when the wait ends, however it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orcastream.worker.adapter_waits import AdapterWaits


class Shelf:
    """A shelf that hands out only what the test gives it."""

    def __init__(self) -> None:
        self.given: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def hold(self, name: str) -> Any:
        return await asyncio.shield(self.given)


class Waiting:
    """The part of a request that a wait uses."""

    def __init__(self) -> None:
        self.request = SimpleNamespace(payload=SimpleNamespace(adapter="a"))
        self.adapter: Any = None
        self.ended = self.closed = False


def begin(waits: AdapterWaits, waiting: Any) -> "asyncio.Task[None]":
    return asyncio.create_task(waits.ready(waiting))


async def test_a_request_that_gets_its_adapter() -> None:
    shelf, waiting = Shelf(), Waiting()
    waits = AdapterWaits(shelf)  # type: ignore[arg-type]  # it asks for a place alone
    asked = [begin(waits, waiting) for _ in range(2)]
    await asyncio.sleep(0)
    assert len(waits) == 1
    shelf.given.set_result("adapter")
    await asyncio.gather(*asked)
    assert (waiting.adapter, len(waits)) == ("adapter", 0)


@pytest.mark.parametrize("turns", [1, 5], ids=["before it has begun", "while it waits"])
@pytest.mark.parametrize("all_at_once", [False, True])
async def test_an_abandoned_request(turns: int, all_at_once: bool) -> None:
    waiting: Any = Waiting()
    waits = AdapterWaits(Shelf())  # type: ignore[arg-type]  # it asks for a place alone
    asked = begin(waits, waiting)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert len(waits) == 1
    if all_at_once:
        waits.abandon_all()
    else:
        waits.abandon(waiting)
    await asked
    assert (waiting.adapter, len(waits)) == (None, 0)
