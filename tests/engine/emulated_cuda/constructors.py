"""Operators that create tensors on the device without an input tensor, such as torch.empty and torch.arange.

Without a CudaTensor among the arguments, torch does not call `CudaTensor.__torch_dispatch__`; it calls the operator
that is registered for CUDA.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tests.engine.emulated_cuda.copies import copy
from tests.engine.emulated_cuda.registry import current
from tests.engine.emulated_cuda.results import compute, room_for
from tests.engine.emulated_cuda.tensors import CudaTensor

aten = torch.ops.aten

_COMPUTED: tuple[Any, ...] = (
    *(aten.arange.default, aten.arange.start, aten.arange.start_step),
    *(aten.randperm.default, aten.randperm.generator, aten.eye.default, aten.eye.m),
)


@contextmanager
def constructors() -> Iterator[None]:
    """Register the operators for CUDA inside the block."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types for it
    try:
        library.impl("empty.memory_format", _empty, "CUDA")
        library.impl("empty_strided", _empty_strided, "CUDA")
        library.impl("copy_", copy, "CUDA")  # torch.tensor() does not call __torch_dispatch__
        for func in _COMPUTED:
            library.impl(func.name().removeprefix("aten::"), _computed(func), "CUDA")
        yield
    finally:
        library._destroy()


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any) -> CudaTensor:
    return room_for(torch.empty(size, device="meta", dtype=dtype, memory_format=others.get("memory_format")))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any
) -> CudaTensor:
    return current().allocate(size, stride, dtype or torch.get_default_dtype())


def _computed(func: Any) -> Callable[..., Any]:
    def make(*args: Any, layout: object = None, device: object = None, pin_memory: object = None, **kwargs: Any) -> Any:
        return compute(func, args, kwargs)

    return make
