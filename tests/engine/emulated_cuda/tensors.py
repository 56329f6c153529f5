"""Tensors on the emulated device."""

from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.engine.emulated_cuda.registry import DEVICE, current


class CudaTensor(torch.Tensor):
    """A tensor on the device.

    `memory` is a host tensor of the same shape, strides and type that contains the numbers. Only work on the device may
    read or write it.
    """

    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "CudaTensor":
        """Return a tensor on the device that shares `memory`."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            layout=memory.layout,
            device=DEVICE,
        )
        made.memory = memory
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let the current device perform an operation; torch calls this method."""
        return current().dispatch(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers as nested lists, after a wait for the device."""
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Raise TypeError, as for any tensor on a GPU."""
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )

    __array__ = numpy

    def data_ptr(self) -> int:
        """Raise RuntimeError: host code that uses the address would bypass the order of the streams."""
        raise RuntimeError("a tensor on an emulated device has no address")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"

    __str__ = __repr__
    __format__ = object.__format__

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = self.detach().clone()
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied


def memory_of(values: Any) -> Any:
    """Return `values`, a nested structure, with each CudaTensor replaced by its memory."""
    return tree_map(lambda each: each.memory if isinstance(each, CudaTensor) else each, values)
