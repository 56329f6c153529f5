"""Memory in large pages, where the system gives them."""

import ctypes
import logging
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable

import torch

PAGE_BYTES = 2 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python has no name for: pages that nobody has touched get memory."""
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1: small pages become a large one with the same content."""
_PATIENCE_S = 0.1
"""How long a page waits for a moment in which nobody computes, and how often one looks for it."""
_LOOK_S = 0.01
_log = logging.getLogger(__name__)


def empty_bytes(num_bytes: int) -> torch.Tensor:
    """Uninitialised memory, `[num_bytes]` of uint8, on a CPU; what is as large as a large page begins where one may."""
    if num_bytes < PAGE_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    return whole[begin : begin + num_bytes]


def into_large_pages(parts: Iterable[torch.Tensor], is_busy: Callable[[], bool]) -> threading.Thread | None:
    """Begin to put `parts`, which lie in memory of `empty_bytes`, into large pages, in a thread of its own.

    What is read from end to end in every iteration comes a quarter faster where one look-up of an address serves for
    2 MiB instead of 4 KiB, and what nobody has written yet gets memory before somebody has to wait for it. To fill
    large pages in the first place would be simpler, but a virtual machine may take seconds for each gigabyte of them,
    and whoever loads would wait. Nor does whoever computes: while `is_busy`, there are ten pages a second. Whoever
    reads or writes meanwhile finds the same; a system that has no large pages leaves them small. A part that nobody
    refers to any more is passed over. None where no part is as large as a page.
    """
    large = [weakref.ref(part) for part in parts if part.nbytes >= PAGE_BYTES]
    if not large:
        return None
    thread = threading.Thread(target=_put, args=(large, is_busy), name="large-pages", daemon=True)
    thread.start()
    return thread


def _put(parts: "list[weakref.ref[torch.Tensor]]", is_busy: Callable[[], bool]) -> None:
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_pages = num_refused = 0
    for each in parts:
        begin = 0
        while (part := each()) is not None and begin + PAGE_BYTES <= part.nbytes:
            address = part.data_ptr() + begin
            madvise(address, PAGE_BYTES, _POPULATE_WRITE)
            num_refused += madvise(address, PAGE_BYTES, _COLLAPSE) != 0
            num_pages += 1
            begin += PAGE_BYTES
            del part
            _wait_while(is_busy)
    _log.debug("large pages: %d, of them %d refused", num_pages, num_refused)


def _wait_while(is_busy: Callable[[], bool]) -> None:
    latest_s = time.monotonic() + _PATIENCE_S
    while is_busy() and time.monotonic() < latest_s:
        time.sleep(_LOOK_S)
