"""Triton kernels: the device launches them, and Triton's interpreter computes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.engine.emulated_cuda.registry import current
from tests.engine.emulated_cuda.tensors import CudaTensor, memory_of
from tests.engine.triton_interpreter import look_up_once

_SHARED_MEMORY_BYTES = 227 * 1024
"""Shared memory of one multiprocessor that a kernel can use, as on an H100."""


@contextmanager
def kernels(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Triton launch kernels on the current device, from here until `patch` is undone.

    At both ends of the block, the engine forgets the facts it has cached about the device. Raises
    ImportError if Triton is not installed; only this function imports it, so pytest can collect tests without it.
    """
    import triton
    from triton.runtime.interpreter import GridExecutor

    look_up_once()
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": _SHARED_MEMORY_BYTES})
    patch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
    patch.setattr(GridExecutor, "__call__", _launcher(GridExecutor.__call__))
    _forget()
    try:
        yield
    finally:
        _forget()


def _launcher(run: Callable[..., object]) -> Callable[..., None]:
    def launcher(executor: Any, *args: Any, **kwargs: Any) -> None:
        _launch(run, executor, args, kwargs)

    return launcher


def _launch(run: Callable[..., object], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if not any(isinstance(each, CudaTensor) for each in tensors):
        run(executor, *args, **kwargs)
        return
    if not all(isinstance(each, CudaTensor) for each in tensors):
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    current().kernels.add((executor.fn.__name__, *[each.dtype for each in tensors], *kwargs.items()))
    current().launch(partial(run, executor, *memory_of(args), **memory_of(kwargs)))


def _forget() -> None:
    from orcastream.engine import triton_support
    from orcastream.engine.attention.triton import tiles
    from orcastream.engine.sampling.drawing import _WITHOUT, _runs_triton

    triton_support._why_not_started.cache_clear()
    tiles._shared_memory.cache_clear()
    _runs_triton.cache_clear()
    _WITHOUT.clear()
