"""The signals that ask a process to stop, and the reaction of one that has nothing to finish yet."""

import _thread
import os
import signal
from collections.abc import Callable
from types import FrameType

from orcastream.telemetry.setup import FLUSH_S, Telemetry

Handler = Callable[[int, FrameType | None], None]


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT, and SIGHUP, by which a closed terminal ends its processes, unless nohup ignores it."""
    closed = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *closed)


def on_stop(handler: Handler | signal.Handlers) -> None:
    """Install `handler` for the stop signals; at no moment is one lost."""
    for number in stop_signals():
        signal.signal(number, handler)


def leaving(telemetry: Telemetry | None = None) -> Handler:
    """Return a handler that exports `telemetry` for at most `FLUSH_S`, then ends this process with status 0.

    An exception would not do: if the signal finds Python in a `__del__` or in a callback from C, it is printed and
    ignored, and the process continues as if there had been no signal.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        on_stop(signal.SIG_IGN)  # a second signal must not cut the export short
        exported = _thread.allocate_lock()
        exported.acquire()

        def export() -> None:
            try:
                if telemetry is not None:
                    telemetry.shut_down()
            finally:
                exported.release()

        try:
            _thread.start_new_thread(export, ())  # this thread may hold any lock, those of `threading` among them
            exported.acquire(timeout=FLUSH_S)
        finally:
            os._exit(0)

    return leave
