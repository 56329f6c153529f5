"""Copies on the device, from the host to the device, and from the device to the host."""

from functools import partial

import torch

from tests.engine.emulated_cuda.registry import DEVICE, current
from tests.engine.emulated_cuda.results import compute
from tests.engine.emulated_cuda.tensors import CudaTensor


def to_copy(
    source: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Return a new tensor with the numbers of `source`, a CudaTensor, on `device`, by default the emulated one.

    A non-blocking copy to the host returns page-locked memory that the device fills later. Copies from the host do not
    take this path: torch itself calls `empty_strided` and `copy_`. Raises the errors of `copy`.
    """
    device = device or DEVICE
    dtype = dtype or source.dtype
    if device.type == "cuda":
        kept = {} if memory_format is None else {"memory_format": memory_format}
        func = torch.ops.aten._to_copy.default
        return compute(func, (source,), {"dtype": dtype, **kept})  # type: ignore[no-any-return]  # of one result, a tensor
    if device.type == "meta":
        return torch.empty_strided(source.shape, source.stride(), dtype=dtype, device="meta")
    shape = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    target = torch.empty_like(shape, dtype=dtype, device="cpu", memory_format=memory_format or torch.preserve_format)
    if non_blocking:
        target = current().allocate_pinned(target.shape, dtype).as_strided(target.shape, target.stride())
    return copy(target, source, non_blocking)


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Launch a copy of `source` into `target`, at least one of them on the device, and return `target`.

    As in CUDA, the device reads page-locked host memory late, and other host memory during this call. The host waits
    for a blocking copy, and for each copy to host memory that is not page-locked. During a capture, raises RuntimeError
    for a copy to or from the host unless it is non-blocking and the memory is page-locked.
    """
    device = current()
    if isinstance(target, CudaTensor) and isinstance(source, CudaTensor):
        device.launch(partial(target.memory.copy_, source.memory))
        return target
    on_host = source if isinstance(target, CudaTensor) else target
    pinned = device.is_pinned(on_host)
    if device.capturing is not None and not (pinned and non_blocking):
        device.broken = True
        raise RuntimeError(
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned."
        )
    if isinstance(target, CudaTensor):
        taken = source if pinned else source.detach().clone()
        device.launch(partial(target.memory.copy_, taken))
        if not non_blocking:
            device.waits("copy to the device")
            device.current_stream().run()
        return target
    assert isinstance(source, CudaTensor)
    device.launch(partial(target.copy_, source.memory))
    if not (pinned and non_blocking):
        device.waits("copy to the host")
        device.current_stream().run()
    return target
