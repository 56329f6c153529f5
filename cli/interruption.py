"""The reactions of a command in a terminal to stop signals: that to Ctrl-C, or where Ctrl-C ends less, its end."""

import asyncio
import signal
from contextlib import suppress
from types import FrameType
from typing import Any

from orcastream.telemetry.leaving import stop_signals


def interrupt_on_stop() -> None:
    """Let SIGTERM and SIGHUP interrupt this process like Ctrl-C, so that it cleans up; nohup's choice stays."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def cancel_on_stop(task: asyncio.Task[Any]) -> None:
    """Let SIGTERM and SIGHUP cancel `task`, which cleans up; nohup's choice stays.

    Once: `timeout` signals its child twice, and the second signal must neither cut the clean-up short nor, when the
    event loop and all handlers of its own are gone, end the process by itself.
    """
    loop = task.get_loop()
    numbers = [number for number in stop_signals() if number != signal.SIGINT]

    def cancel(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        with suppress(RuntimeError):  # the loop is closed: the process ends anyway
            loop.call_soon_threadsafe(task.cancel)

    for number in numbers:
        signal.signal(number, cancel)
