"""Processes that never outlive the one that started them."""

import ctypes
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills the calling process as soon as its parent is gone; its own children must ask for themselves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """`command` as a process that the kernel kills as soon as the thread that starts it is gone.

    Not by `preexec_fn`: Python between fork and exec may wait for ever for a lock that another thread held, and with it
    whoever starts the process.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]
