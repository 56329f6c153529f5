"""How a process that has nothing to finish yet obeys SIGTERM and SIGINT."""

import _thread
import os
import signal
from collections.abc import Callable
from types import FrameType

from orcastream.telemetry.setup import FLUSH_S, Telemetry

Handler = Callable[[int, FrameType | None], None]


def on_stop(handler: Handler | signal.Handlers) -> None:
    """Have SIGTERM and SIGINT handled: there is no moment at which one is lost."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def leaving(telemetry: Telemetry | None = None) -> Handler:
    """A handler that ends this process with status 0, `telemetry` exported first for as long as `FLUSH_S` allows.

    An exception would not do: where the signal finds Python in a `__del__` or in a callback from C, it is printed and
    passed over, and the process goes on as if nothing had been said to it.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        on_stop(signal.SIG_IGN)  # a second one must not cut the export short
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
