"""Memory in large pages, where the system gives them."""

import ctypes
import logging
import mmap
import os
import sys
import threading
from collections.abc import Iterable

import torch

PAGE_BYTES = 2 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1, which Python has no name for: small pages become a large one with the same content."""
_LOWEST_PRIORITY = 19

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
    seconds for each gigabyte of them, for which nobody has to wait here. Whoever reads meanwhile reads the same, and a
    system that has no large pages leaves everything as it is. None where no part is as large as a page.
    """
    ranges = [(part, part.data_ptr()) for part in parts if len(part) >= PAGE_BYTES]
    if not ranges:
        return None
    thread = threading.Thread(target=_collapse, args=(ranges,), name="large-pages", daemon=True)
    thread.start()
    return thread


def _collapse(ranges: list[tuple[torch.Tensor, int]]) -> None:
    if sys.platform != "linux":
        return
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_pages = num_refused = 0
    for part, address in ranges:
        for begin in range(0, len(part) // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES):
            num_pages += 1
            num_refused += madvise(address + begin, PAGE_BYTES, _COLLAPSE) != 0
    _log.debug("large pages: %d of %d", num_pages - num_refused, num_pages)
