"""Stops one thread of another process while its other threads continue: a stalled engine.

Uses ptrace(2), as a debugger does; Linux only.
"""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_TRIES = 8
_BETWEEN_TRIES_S = 0.05
"""Room for an iteration: many tries without any would be a longer stand-still than the one that was asked for."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def busiest_thread(pid: int) -> int | None:
    """Return the thread, other than the main one, with the most CPU time; None means the process is gone."""
    times: dict[int, int] = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            times[int(task.name)] = int(fields[11]) + int(fields[12])
    except OSError:
        return None
    times.pop(pid, None)
    return max(times, key=lambda thread: times[thread], default=None)


def stall(thread_id: int, seconds: float, others_live: Callable[[], bool]) -> bool:
    """Stop a thread for the given time, at a moment when it holds no lock that the others need: `others_live` says
    whether they run. Returns False if no such moment was found; raises OSError if this is not permitted here. Blocks.
    """
    for _ in range(_TRIES):
        _stop(thread_id)
        try:
            if others_live():
                time.sleep(seconds)
                return True
        finally:
            _ptrace(_DETACH, thread_id)
        time.sleep(_BETWEEN_TRIES_S)
    return False


def _stop(thread_id: int) -> None:
    _ptrace(_SEIZE, thread_id)
    _ptrace(_INTERRUPT, thread_id)
    os.waitpid(thread_id, _WALL)


def _ptrace(request: int, thread_id: int) -> None:
    if _libc.ptrace(request, thread_id, None, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
