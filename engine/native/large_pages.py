"""Memory in large pages, where the system gives them."""

import ctypes
import logging
import mmap
import sys
import threading
import weakref
from collections.abc import Iterable

import torch

PAGE_BYTES = 2 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1, which Python has no name for: small pages become a large one with the same content."""
_AT_ONCE = 8 * PAGE_BYTES
"""Bytes of one call, which leaves the interpreter to others."""

_log = logging.getLogger(__name__)


def empty_bytes(num_bytes: int) -> torch.Tensor:
    """Uninitialised memory, `[num_bytes]` of uint8, on a CPU; what is as large as a large page begins where one may."""
    if num_bytes < PAGE_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    return whole[begin : begin + num_bytes]


def collapse(parts: Iterable[torch.Tensor]) -> threading.Thread | None:
    """Begin to put `parts`, which `empty_bytes` made and somebody has filled, into large pages, in a thread of its own.

    What is read from end to end in every iteration comes a quarter faster where one look-up of an address serves for
    2 MiB instead of 4 KiB. To fill large pages in the first place would be simpler, but a virtual machine may take
    seconds for each gigabyte of them, and whoever loads would wait. Whoever reads meanwhile reads the same, and a
    system that has no large pages leaves everything as it is. A part that nobody refers to any more is passed over.
    None where no part is as large as a page.
    """
    large = [weakref.ref(part) for part in parts if len(part) >= PAGE_BYTES]
    if not large:
        return None
    thread = threading.Thread(target=_collapse, args=(large,), name="large-pages", daemon=True)
    thread.start()
    return thread


def _collapse(parts: "list[weakref.ref[torch.Tensor]]") -> None:
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_calls = num_refused = 0
    for each in parts:
        begin = 0
        while (part := each()) is not None and (size := min(len(part) - begin, _AT_ONCE) // PAGE_BYTES * PAGE_BYTES):
            num_refused += madvise(part.data_ptr() + begin, size, _COLLAPSE) != 0
            num_calls += 1
            begin += size
            del part
    _log.debug("large pages: %d calls, %d refused", num_calls, num_refused)
