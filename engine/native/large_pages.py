"""Moves memory into large pages, if the system provides them."""

import atexit
import ctypes
import logging
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import cache

import torch

PAGE_BYTES = 2 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, for which Python has no name: untouched pages get memory."""
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1: small pages become a large one with the same content."""
_PATIENCE_S = 0.1
"""Longest wait per page for an idle moment; `_LOOK_S` is the interval between checks for one."""
_LOOK_S = 0.01
_log = logging.getLogger(__name__)
_exiting = threading.Event()
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def empty_bytes(num_bytes: int) -> torch.Tensor:
    """Return uninitialized CPU memory, uint8 `[num_bytes]`; aligned to a large page if it is at least as large."""
    if num_bytes < PAGE_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    return whole[begin : begin + num_bytes]


def shortened(memory: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return the first `num_bytes` of memory of `empty_bytes`; whole pages behind them go back to the system.

    Nothing else may use the memory. Pages that have been touched before cost no page faults, which take longer than
    writing to them.
    """
    begin, end = memory.data_ptr() + num_bytes, memory.data_ptr() + memory.nbytes
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and memory.nbytes >= PAGE_BYTES and begin < end:
        _madvise()(begin, end - begin, mmap.MADV_DONTNEED)
    return memory[:num_bytes]


def into_large_pages(parts: Iterable[torch.Tensor], is_busy: Callable[[], bool]) -> threading.Thread | None:
    """Start a thread that moves `parts`, which are in memory of `empty_bytes`, into large pages; return it.

    Memory that is read from end to end in every iteration arrives a quarter faster if one address translation covers
    2 MiB instead of 4 KiB, and untouched memory is allocated before an operator has to wait for it. Allocating large
    pages in the first place would be simpler, but a virtual machine may take seconds per gigabyte, for which loading
    would wait. Computation does not wait either: while `is_busy`, the thread moves ten pages a second. Concurrent reads
    and writes are safe; a system without large pages keeps small ones. A part that is no longer referenced is skipped.
    Returns None if no part is as large as a page. The thread ends early if the interpreter exits, which waits for it,
    so `is_busy` must not block.
    """
    large = [weakref.ref(part) for part in parts if part.nbytes >= PAGE_BYTES]
    if not large:
        return None
    thread = threading.Thread(target=_put, args=(large, is_busy), name="large-pages", daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def _end_threads() -> None:
    """Wait for the threads: the last reference to a part may be one's own.

    Releasing the part's memory gives up the interpreter for a while, deep inside torch. An interpreter that has begun
    to shut down would end the thread there, which C++ does not permit: the process would abort.
    """
    _exiting.set()
    for thread in tuple(_threads):
        thread.join()


def _put(parts: "list[weakref.ref[torch.Tensor]]", is_busy: Callable[[], bool]) -> None:
    if sys.platform != "linux":
        return
    madvise = _madvise()
    num_pages = num_refused = 0
    for each in parts:
        begin = 0
        while not _exiting.is_set() and (part := each()) is not None and begin + PAGE_BYTES <= part.nbytes:
            address = part.data_ptr() + begin
            madvise(address, PAGE_BYTES, _POPULATE_WRITE)
            num_refused += madvise(address, PAGE_BYTES, _COLLAPSE) != 0
            num_pages += 1
            begin += PAGE_BYTES
            del part
            _wait_while(is_busy)
    _log.debug("large pages: %d, of them %d refused", num_pages, num_refused)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    found = ctypes.CDLL(None, use_errno=True).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def _wait_while(is_busy: Callable[[], bool]) -> None:
    latest_s = time.monotonic() + _PATIENCE_S
    while is_busy() and time.monotonic() < latest_s and not _exiting.wait(_LOOK_S):
        pass
