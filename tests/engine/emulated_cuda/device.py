"""The emulated device: its streams, its memory, and a record of when the host waits for it."""

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engine.emulated_cuda.graphs import CUDAGraph
from tests.engine.emulated_cuda.memory import unwritten
from tests.engine.emulated_cuda.streams import Stream
from tests.engine.emulated_cuda.tensors import CudaTensor

_PACKAGE = Path(__file__).parent


@dataclass
class EmulatedCuda:
    """The device. `emulated_cuda` creates one and replaces torch.cuda with it.

    `waited` has an entry for each time that the host waits for the device: the reason and the caller, as
    `file.py:line`. `total_memory`, `allocated` and `peak` are bytes. `capturing` is the graph that records the work, if
    any, and `broken` says that its capture cannot succeed. `spoiled` says that a capture has failed, `refuses_waits`
    that waits are errors. `kernels` has the name, types and constants of each Triton kernel launched so far, which a
    GPU would have compiled. `pinned` has the addresses of page-locked memory. `dispatch` performs one of torch's
    operations (operations.py).
    """

    total_memory: int
    dispatch: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
    default_stream: Stream = field(default_factory=Stream)
    streams: "weakref.WeakSet[Stream]" = field(default_factory=weakref.WeakSet)
    capturing: CUDAGraph | None = None
    broken: bool = False
    spoiled: bool = False
    refuses_waits: bool = False
    kernels: set[tuple[object, ...]] = field(default_factory=set)
    waited: list[tuple[str, str]] = field(default_factory=list)
    allocated: int = 0
    peak: int = 0
    pinned: set[int] = field(default_factory=set)
    _local: threading.local = field(default_factory=threading.local)

    def current_stream(self, device: object = None) -> Stream:
        """Return the stream that the calling thread uses."""
        found: Stream = getattr(self._local, "stream", self.default_stream)
        return found

    def set_stream(self, stream: Stream | None) -> None:
        """Make the calling thread use `stream`; None changes nothing."""
        if stream is not None:
            self._local.stream = stream

    def launch(self, work: Callable[[], object]) -> None:
        """Add `work` to the current stream or, during a capture, to the graph."""
        (self.current_stream() if self.capturing is None else self.capturing).add(work)

    def waits(self, reason: str) -> None:
        """Record in `waited` that the host waits for the device; the caller then runs the work.

        During a capture, raises torch.AcceleratorError and spoils the capture. Raises RuntimeError with
        `refuses_waits`.
        """
        if self.capturing is not None:
            self.broken = True
            message = "CUDA error: operation not permitted when stream is capturing"
            raise torch.AcceleratorError(f"{message} ({reason})")
        if self.refuses_waits:
            raise RuntimeError("called a synchronizing CUDA operation")
        self.waited.append((reason, _caller()))

    def set_sync_debug_mode(self, mode: int | str) -> None:
        """Refuse waits if `mode` is `error` or 2."""
        self.refuses_waits = mode in ("error", 2)

    def empty_cache(self) -> None:
        """Do nothing: no memory is cached. Raises RuntimeError once a capture has failed, as with torch 2.11."""
        if self.spoiled:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    def synchronize(self, device: object = None) -> None:
        """Make the host wait for all streams. Raises torch.AcceleratorError during a capture."""
        self.waits("synchronize")
        self._run_all()

    def _run_all(self) -> None:
        for stream in (self.default_stream, *list(self.streams)):
            stream.run()

    def allocate(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> CudaTensor:
        """Return a tensor of this shape, with `stride` in items, in new, unwritten memory.

        Raises torch.OutOfMemoryError if more than `total_memory` bytes would be in use.
        """
        spans = [(size - 1) * step for size, step in zip(shape, stride, strict=True)]
        count = 0 if 0 in shape else 1 + sum(spans)
        num_bytes = count * dtype.itemsize
        if self.allocated + num_bytes > self.total_memory and self.capturing is None:
            # Work that has not run keeps its tensors alive. On a GPU their memory is free without a wait, so this is
            # not an entry in `waited`.
            self._run_all()
        if self.allocated + num_bytes > self.total_memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)
        with torch.inference_mode():
            flat = unwritten(num_bytes, dtype, partial(self._free, num_bytes))
            memory = flat.as_strided(tuple(shape), tuple(stride))
        return CudaTensor(memory)

    def _free(self, num_bytes: int) -> None:
        self.allocated -= num_bytes

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous host tensor of this shape in new, unwritten page-locked memory."""
        address = 0
        flat = unwritten(int(np.prod(shape)) * dtype.itemsize, dtype, lambda: self.pinned.discard(address))
        address = flat.untyped_storage().data_ptr()
        if address:  # all empty tensors have the address 0
            self.pinned.add(address)
        return flat.view(tuple(shape))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is in page-locked memory."""
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self.pinned

    def memory_info(self, device: object = None) -> tuple[int, int]:
        """Return the free and the total memory in bytes."""
        return self.total_memory - self.allocated, self.total_memory

    def reset_peak(self, device: object = None) -> None:
        """Set `peak` to the bytes now allocated."""
        self.peak = self.allocated


def _caller() -> str:
    """Return `file.py:line` of the innermost caller outside torch and this package, or an empty string."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_internal(Path(frame.f_code.co_filename)):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_internal(file: Path) -> bool:
    return "torch" in str(file) or file.parent == _PACKAGE
