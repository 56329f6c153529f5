"""Errors of a device or a host without enough memory."""

import errno
from traceback import clear_frames

import torch

_OF_THE_HOST = ("DefaultCPUAllocator", "bad_alloc")
"""What torch's plain RuntimeError says where an allocation on the host fails."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that there was not enough memory: a smaller or later attempt may succeed."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _OF_THE_HOST)


def release(error: BaseException) -> None:
    """Free the memory of the attempt that ended with `error`: until it is handled, its traceback refers to that."""
    clear_frames(error.__traceback__)
    torch.cuda.empty_cache()
