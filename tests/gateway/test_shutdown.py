"""Waits are cut when open streams must end, and nothing else is canceled by that."""

import asyncio

import pytest

from orcastream.gateway.shutdown import Shutdown, Stopping


def running() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def cut(shutdown: Shutdown) -> None:
    """Wait within the cut scope for an event that never comes, while the gateway ends."""
    asyncio.get_running_loop().call_soon(shutdown.end_now)
    with shutdown.bounds():
        await asyncio.Event().wait()


async def test_a_waiting_task_is_told_and_continues() -> None:
    with pytest.raises(Stopping):
        await cut(Shutdown())
    assert running().cancelling() == 0


async def test_a_cancel_handled_earlier() -> None:
    running().cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(Stopping):
        await cut(Shutdown())
    assert running().uncancel() == 0


async def test_a_wait_that_ends_otherwise_as_it_is_cut() -> None:
    shutdown = Shutdown()

    async def breaks() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("broken") from None

    asyncio.get_running_loop().call_soon(shutdown.end_now)
    with pytest.raises(OSError, match="broken"), shutdown.bounds():
        await breaks()
    assert running().cancelling() == 0


async def test_a_simultaneous_cancel_takes_precedence() -> None:
    task = asyncio.create_task(cut(Shutdown()))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
