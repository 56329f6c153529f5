"""Patches that replace torch.cuda with the emulated device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils._device

from tests.engine.emulated_cuda.constructors import constructors
from tests.engine.emulated_cuda.device import EmulatedCuda
from tests.engine.emulated_cuda.graphs import CUDAGraph
from tests.engine.emulated_cuda.guard import load_guard
from tests.engine.emulated_cuda.kernels import kernels
from tests.engine.emulated_cuda.operations import dispatch
from tests.engine.emulated_cuda.registry import registered
from tests.engine.emulated_cuda.streams import Event, Stream

_PROCESSORS = 4


@contextmanager
def emulated_cuda(folder: Path, total_memory: int = 2**30) -> Iterator[EmulatedCuda]:
    """Give torch one CUDA device, which has `total_memory` bytes, inside the block.

    At the end of the block, the device runs all remaining work. `folder` receives a small C++ library, compiled once
    per process. Raises FileNotFoundError if there is no C++ compiler, subprocess.CalledProcessError if it fails.
    """
    load_guard(folder)
    emulated = EmulatedCuda(total_memory, dispatch)
    with registered(emulated), pytest.MonkeyPatch.context() as patch, kernels(patch), constructors():
        _patch_cuda(patch, emulated)
        _patch_torch(patch, emulated)
        yield emulated
        emulated.capturing = None
        emulated.synchronize()


def _patch_cuda(patch: pytest.MonkeyPatch, emulated: EmulatedCuda) -> None:
    properties = SimpleNamespace(
        name="emulated", total_memory=emulated.total_memory, multi_processor_count=_PROCESSORS, major=9, minor=0
    )
    for name, value in {
        "_lazy_init": lambda: None,
        "_get_device_index": lambda *args, **kwargs: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: properties.name,
        "synchronize": emulated.synchronize,
        "current_stream": emulated.current_stream,
        "default_stream": lambda device=None: emulated.default_stream,
        "set_stream": emulated.set_stream,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": lambda: emulated.capturing is not None,
        "get_sync_debug_mode": lambda: 2 * emulated.refuses_waits,
        "set_sync_debug_mode": emulated.set_sync_debug_mode,
        **_memory_functions(emulated),
    }.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch.cuda.graph, "default_capture_stream", None)


def _memory_functions(emulated: EmulatedCuda) -> dict[str, Callable[..., Any]]:
    return {
        "mem_get_info": emulated.memory_info,
        "memory_allocated": lambda device=None: emulated.allocated,
        "memory_reserved": lambda device=None: emulated.allocated,
        "max_memory_allocated": lambda device=None: emulated.peak,
        "reset_peak_memory_stats": emulated.reset_peak,
        "empty_cache": emulated.empty_cache,
    }


def _patch_torch(patch: pytest.MonkeyPatch, emulated: EmulatedCuda) -> None:
    torch.utils._device._device_constructors()  # fills a cache that must contain the unpatched torch.empty
    patch.setattr(torch, "empty", _empty_or_pinned(torch.empty, emulated))
    patch.setattr(torch.Tensor, "is_pinned", lambda tensor, device=None: emulated.is_pinned(tensor))
    patch.setattr(torch, "Generator", _Generator)
    patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    patch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)


def _empty_or_pinned(empty: Callable[..., torch.Tensor], emulated: EmulatedCuda) -> Callable[..., torch.Tensor]:
    def made(*size: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if not pin_memory:
            return empty(*size, **kwargs)
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return emulated.allocate_pinned(shape, kwargs.get("dtype") or torch.get_default_dtype())

    return made


class _Generator(torch._C.Generator):
    """Return a random number generator on the host for any device: the host computes the device's numbers."""

    def __new__(cls, device: object = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]
