"""Processes that never outlive the one that started them."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills the calling process as soon as its parent is gone; its own children must ask for themselves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
