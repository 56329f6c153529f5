"""Stop signals: one request may arrive as several signals; only a later one kills."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from orcastream.cli.stop_signals import StopSignals
from tests.patience import PATIENCE_S


@pytest.fixture
async def signals() -> AsyncIterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield StopSignals()
    for number, handler in before.items():
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, handler)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
async def test_signals_in_quick_succession_are_one_request(
    signals: StopSignals, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
    first, second = numbers
    async with asyncio.timeout(PATIENCE_S):
        os.kill(os.getpid(), first)
        await signals.stop.wait()
        os.kill(os.getpid(), second)
        os.kill(os.getpid(), signal.SIGUSR1)
        await handled.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    assert not signals.kill.is_set()


async def test_a_later_signal_kills(signals: StopSignals) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not signals.kill.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
    assert signals.stop.is_set()
