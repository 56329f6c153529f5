"""Memory in large pages, where the system gives them."""

import mmap
from contextlib import suppress

import torch

PAGE_BYTES = 2 << 20


def empty_bytes(num_bytes: int) -> torch.Tensor:
    """Uninitialised memory, `[num_bytes]` of uint8, on a CPU; what is as large as a page begins with one.

    What is read from end to end in every iteration comes a quarter faster where one look-up of an address serves for
    2 MiB instead of 4 KiB. The first use of such a page takes long: it is for what is filled once. A system that has no such pages gives it in small ones. What is left of
    the size behind the last whole page is in small ones, so that no more is resident than was asked for.
    """
    if num_bytes < PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE_BYTES
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, begin, num_bytes // PAGE_BYTES * PAGE_BYTES)
    return whole[begin : begin + num_bytes]
