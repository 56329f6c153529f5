"""A CUDA device that computes on the CPU: late, in the order of its streams, and as strict as a real one.

What a GPU would refuse is refused: tensors of two devices in one operation, numpy of what is on the device, a wait for
the device while a graph is captured, a kernel on host memory. What it would not guarantee goes wrong: work is done only
when the host waits for it, in no stream before it has to be; an asynchronous copy reads page-locked memory as it is by
then; memory that nobody wrote holds no usable number. The numbers are a CPU's, Triton kernels are interpreted.
"""

import ctypes
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._device
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from orcastream.engine.native.compiler import Compiler

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)

_PROCESSORS = 4
_CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_UNWRITTEN = 1_000_003
"""In integers that nobody wrote: no index of anything here."""

_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
struct Emulated final : NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Emulated);
}
"""
"""What torch asks which device is the current one; a build without CUDA has nobody who answers."""

_VIEWS_BY_NAME = {"alias", "detach", "lift_fresh", "_unsafe_view", "_reshape_alias"}
_UNINITIALIZED = {"empty_like", "new_empty", "new_empty_strided"}
_WITH_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_READ_BY_HOST = {
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    *("bincount", "repeat_interleave", "is_nonzero", "item"),
}
_AS_ONE = {"scaled_dot_product_attention", "linear", "_grouped_mm"}
"""Whose parts torch would choose by the device."""


class _Memory(np.ndarray):  # type: ignore[type-arg]
    """Bytes of which somebody is told when they are free."""


class Stream:
    """Work in order, of which as little is done as somebody waits for."""

    device = DEVICE

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._issued = self._done = 0
        self._lock = threading.RLock()
        if _EMULATED:
            _emulated().streams.add(self)

    def add(self, work: Callable[[], object]) -> int:
        """Its number."""
        with self._lock:
            self._work.append(work)
            self._issued += 1
            return self._issued

    def run(self, until: int | None = None) -> None:
        """What was added up to that number; all by default."""
        with self._lock, torch.inference_mode():
            last = self._issued if until is None else until
            while self._done < last:
                self._done += 1
                self._work.popleft()()

    def is_done(self, number: int) -> bool:
        return self._done >= number

    def synchronize(self) -> None:
        _emulated().waits("Stream.synchronize")
        self.run()

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())


class Event:
    """A place in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._place: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _emulated().current_stream()
        self._place = (stream, stream.add(lambda: None))

    def wait(self, stream: Stream | None = None) -> None:
        if self._place is not None:
            own, number = self._place
            (stream or _emulated().current_stream()).add(partial(own.run, number))

    def synchronize(self) -> None:
        _emulated().waits("Event.synchronize")
        if self._place is not None:
            own, number = self._place
            own.run(number)

    def query(self) -> bool:
        return self._place is None or self._place[0].is_done(self._place[1])

    def elapsed_time(self, end: "Event") -> float:
        if not self._timed or not end._timed or self._place is None or end._place is None:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not end.query():
            raise RuntimeError("CUDA error: device not ready")
        return 0.5


class CUDAGraph:
    """Work that was noted instead of being done."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._work: list[Callable[[], object]] = []
        self._captured = False

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global", **others: object) -> None:
        device = _emulated()
        if device.capturing is not None or device.current_stream() is device.default_stream:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream, one at a time")
        device.capturing, device.broken = self, False

    def capture_end(self) -> None:
        device = _emulated()
        device.capturing = None
        if device.broken:
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
        self._captured = True

    def add(self, work: Callable[[], object]) -> None:
        """Instead of into a stream."""
        self._work.append(work)

    def replay(self) -> None:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for work in self._work:
            _emulated().launch(work)


class CudaTensor(torch.Tensor):
    """A tensor on the device, whose numbers are in `memory`, a tensor of the host that nobody else may look at."""

    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "CudaTensor":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            layout=memory.layout,
            device=DEVICE,
        )
        made.memory = memory
        return made  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )

    __array__ = numpy

    def data_ptr(self) -> int:
        raise RuntimeError("the address of a tensor on an emulated device was asked for")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"

    __str__ = __repr__
    __format__ = object.__format__

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = self.detach().clone()
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied


@dataclass
class EmulatedCuda:
    """The device. `waited` notes each time that the host waits for it: what for, and where."""

    total_memory: int
    default_stream: Stream = field(default_factory=Stream)
    streams: "weakref.WeakSet[Stream]" = field(default_factory=weakref.WeakSet)
    capturing: CUDAGraph | None = None
    broken: bool = False
    waited: list[tuple[str, str]] = field(default_factory=list)
    allocated: int = 0
    peak: int = 0
    pinned: set[int] = field(default_factory=set)
    _local: threading.local = field(default_factory=threading.local)

    def current_stream(self, device: object = None) -> Stream:
        found: Stream = getattr(self._local, "stream", self.default_stream)
        return found

    def set_stream(self, stream: Stream | None) -> None:
        if stream is not None:
            self._local.stream = stream

    def launch(self, work: Callable[[], object]) -> None:
        """Let the current stream do it, or the graph that is captured."""
        (self.current_stream() if self.capturing is None else self.capturing).add(work)

    def waits(self, what: str) -> None:
        """The host waits for the device, which it may not while a graph is captured."""
        if self.capturing is not None:
            self.broken = True
            raise torch.AcceleratorError(f"{_CAPTURING} ({what})")
        frame: Any = sys._getframe(1)
        while frame is not None and ("torch" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        where = "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self.waited.append((what, where))

    def synchronize(self, device: object = None) -> None:
        self.waits("synchronize")
        self._catch_up()

    def _catch_up(self) -> None:
        for stream in (self.default_stream, *list(self.streams)):
            stream.run()

    def allocate(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> CudaTensor:
        """Memory that nobody wrote; torch.OutOfMemoryError."""
        spans = [(size - 1) * step for size, step in zip(shape, stride, strict=True)]
        count = 0 if 0 in shape else 1 + sum(spans)
        num_bytes = count * dtype.itemsize
        if self.allocated + num_bytes > self.total_memory and self.capturing is None:
            self._catch_up()  # so that what nobody holds is free, which on a GPU does not wait for the work
        if self.allocated + num_bytes > self.total_memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)
        with torch.inference_mode():
            flat = _unwritten(num_bytes, dtype, partial(self._free, num_bytes))
            memory = flat.as_strided(tuple(shape), tuple(stride))
        return CudaTensor(memory)

    def _free(self, num_bytes: int) -> None:
        self.allocated -= num_bytes

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked memory of the host."""
        address = 0
        flat = _unwritten(int(np.prod(shape)) * dtype.itemsize, dtype, lambda: self.pinned.discard(address))
        address = flat.untyped_storage().data_ptr()
        self.pinned.add(address)
        return flat.view(tuple(shape))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self.pinned

    def memory_info(self, device: object = None) -> tuple[int, int]:
        return self.total_memory - self.allocated, self.total_memory

    def reset_peak(self, device: object = None) -> None:
        self.peak = self.allocated


def _unwritten(num_bytes: int, dtype: torch.dtype, freed: Callable[[], object]) -> torch.Tensor:
    memory = np.empty(num_bytes, np.uint8).view(_Memory)
    weakref.finalize(memory, freed).atexit = False
    flat = torch.from_numpy(memory).view(dtype) if num_bytes else torch.empty(0, dtype=dtype)
    if dtype is torch.float8_e4m3fn:
        flat.view(torch.uint8).fill_(0x7F)
    elif dtype.is_floating_point:
        flat.fill_(torch.nan)
    else:
        flat.fill_(_UNWRITTEN if dtype.itemsize > 2 else 99)
    return flat


_EMULATED: list[EmulatedCuda] = []


def _emulated() -> EmulatedCuda:
    return _EMULATED[-1]


# -- operations -------------------------------------------------------------------------------------------------


def _dispatch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    if name == "_to_copy":
        return _to_copy(*args, **kwargs)
    if name == "copy_":
        return _copy(*args, **kwargs)
    if name == "is_pinned":
        return False
    if name not in _AS_ONE and func._can_decompose():
        found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if name in _WITH_HOST_INDICES:
        if any(each.dtype in (torch.bool, torch.uint8) for each in args[1] if each is not None):
            return _read_by_host(func, args, kwargs)
        indices = [each if each is None or isinstance(each, CudaTensor) else each.to(DEVICE) for each in args[1]]
        args = (args[0], indices, *args[2:])
    _refuse_two_devices(func, args, kwargs)
    written = [each for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    if written:
        return _write(func, args, kwargs, [each.name for each in written])
    if name in _VIEWS_BY_NAME or any(each.alias_info is not None for each in func._schema.returns):
        with torch.inference_mode():
            found = func(*_memory_of(args), **_memory_of(kwargs))
        with torch.inference_mode(args[0].is_inference()):  # as a view is
            return tree_map_only(torch.Tensor, CudaTensor, found)
    if name in _READ_BY_HOST:
        return _read_by_host(func, args, kwargs)
    return _compute(func, args, kwargs)


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A result in memory of its own."""
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    results = tree_map_only(torch.Tensor, _room_for, _shapes(func, args, kwargs))
    if func.overloadpacket.__name__ not in _UNINITIALIZED:
        _emulated().launch(partial(_fill, results, func, _memory_of(args), _memory_of(kwargs)))
    return results


def _room_for(like: torch.Tensor) -> CudaTensor:
    return _emulated().allocate(like.shape, like.stride(), like.dtype)


def _fill(results: Any, func: Any, args: Any, kwargs: Any) -> None:
    if func is aten.histc.default:  # a CPU has none of integers
        args = (args[0].float(), *args[1:])
    for result, each in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(result, CudaTensor):
            assert result.shape == each.shape, func
            result.memory.copy_(each)


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """What comes of it, without numbers."""
    if func is aten.scaled_dot_product_attention.default:
        query, _, value = args[:3]
        return torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device="meta")
    if func is aten._grouped_mm.default:
        left, right = args[:2]
        if left.dtype is not torch.bfloat16:
            _emulated().waits("_grouped_mm: only of bfloat16 it is one kernel")
        return torch.empty(left.shape[0], right.shape[-1], dtype=left.dtype, device="meta")
    with torch.inference_mode():
        like = partial(tree_map, partial(_like, device="meta"))
        try:
            return func(*like(args), **like(kwargs), **({} if _has_tensor(args) else {"device": torch.device("meta")}))
        except NotImplementedError:
            like = partial(tree_map, partial(_like, device="cpu"))
            return func(*like(args), **like(kwargs))


def _like(value: Any, device: str) -> Any:
    if not isinstance(value, CudaTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return made if device == "meta" else made.zero_()


def _has_tensor(args: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in tree_leaves(args))


def _write(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[str]) -> Any:
    """In place, or into `out`; what was written is the result."""
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    targets = [given[name] for name in written]
    if any(not isinstance(each, CudaTensor) for each in tree_leaves(targets)):
        raise RuntimeError(f"{func}: the result is on the host, an argument on {DEVICE}")
    _emulated().launch(partial(_write_late, func, _memory_of(args), _memory_of(kwargs), _memory_of(targets)))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _write_late(func: Any, args: Any, kwargs: Any, targets: Sequence[Any]) -> None:
    before = [each.shape for each in tree_leaves(targets)]
    func(*args, **kwargs)
    assert before == [each.shape for each in tree_leaves(targets)], f"{func} changed the shape of its result"


def _read_by_host(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the host waits for: a number, or a result whose shape depends on numbers."""
    device = _emulated()
    device.waits(str(func))
    device.current_stream().run()
    with torch.inference_mode():
        found = func(*_memory_of(args), **_memory_of(kwargs))
        if func.overloadpacket.__name__.endswith("_"):
            return args[0]
        results = tree_map_only(torch.Tensor, _room_for, found)
        _fill(results, lambda: found, (), {})
    return results


def _to_copy(
    source: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """From device to device or to the host; the way from the host is torch's own, by `empty_strided`."""
    device = device or DEVICE
    dtype = dtype or source.dtype
    if device.type == "cuda":
        kept = {} if memory_format is None else {"memory_format": memory_format}
        return _compute(aten._to_copy.default, (source,), {"dtype": dtype, **kept})  # type: ignore[no-any-return]
    if device.type == "meta":
        return torch.empty_strided(source.shape, source.stride(), dtype=dtype, device="meta")
    shape = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    target = torch.empty_like(shape, dtype=dtype, device="cpu", memory_format=memory_format or torch.preserve_format)
    if non_blocking:
        target = _emulated().allocate_pinned(target.shape, dtype).as_strided(target.shape, target.stride())
    return _copy(target, source, non_blocking)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    emulated = _emulated()
    if isinstance(target, CudaTensor) and isinstance(source, CudaTensor):
        emulated.launch(partial(target.memory.copy_, source.memory))
        return target
    on_host, on_device = (source, target) if isinstance(target, CudaTensor) else (target, source)
    assert isinstance(on_device, CudaTensor)
    pinned = emulated.is_pinned(on_host)
    if emulated.capturing is not None and not (pinned and non_blocking):
        emulated.broken = True
        raise RuntimeError(
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned."
        )
    if target is on_device:
        taken = source if pinned else source.detach().clone()
        emulated.launch(partial(on_device.memory.copy_, taken))
        if not non_blocking:
            emulated.waits("copy to the device")
            emulated.current_stream().run()
        return target
    emulated.launch(partial(target.copy_, on_device.memory))
    if not (pinned and non_blocking):
        emulated.waits("copy to the host")
        emulated.current_stream().run()
    return target


def _refuse_two_devices(func: Any, args: Any, kwargs: Any) -> None:
    others = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    others = [each for each in others if not isinstance(each, CudaTensor)]
    if not others:
        return
    takes_scalars = torch.Tag.pointwise in func.tags or func.overloadpacket.__name__ in (
        *("masked_fill", "masked_fill_", "fill_", "index_fill", "index_fill_", "where", "index_put", "index_put_"),
        "_index_put_impl_",
    )
    if not takes_scalars or any(each.ndim for each in others):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and "
            f"{others[0].device}! ({func})"
        )


def _memory_of(values: Any) -> Any:
    return tree_map(lambda each: each.memory if isinstance(each, CudaTensor) else each, values)


# -- what torch and Triton ask -----------------------------------------------------------------------------------


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any) -> CudaTensor:
    like = torch.empty(size, device="meta", dtype=dtype, memory_format=others.get("memory_format"))
    return _emulated().allocate(like.shape, like.stride(), like.dtype)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any
) -> CudaTensor:
    return _emulated().allocate(size, stride, dtype or torch.get_default_dtype())


def _made_by(func: Any) -> Callable[..., Any]:
    def make(*args: Any, layout: object = None, device: object = None, pin_memory: object = None, **kwargs: Any) -> Any:
        return _compute(func, args, kwargs)

    return make


def _registered() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "CUDA")
    library.impl("empty_strided", _empty_strided, "CUDA")
    library.impl("copy_", _copy, "CUDA")  # torch.tensor leaves the dispatch of Python out
    for func in (
        *(aten.arange.default, aten.arange.start, aten.arange.start_step),
        *(aten.randperm.default, aten.randperm.generator, aten.eye.default, aten.eye.m),
    ):
        library.impl(func.name().removeprefix("aten::"), _made_by(func), "CUDA")
    return library


def _launch_kernel(run: Callable[..., object], executor: Any, *args: Any, **kwargs: Any) -> None:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if not any(isinstance(each, CudaTensor) for each in tensors):
        run(executor, *args, **kwargs)
        return
    if not all(isinstance(each, CudaTensor) for each in tensors):
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    _emulated().launch(partial(run, executor, *_memory_of(args), **_memory_of(kwargs)))


class _Generator(torch._C.Generator):
    """That of the device is one of the host."""

    def __new__(cls, device: object = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")


def build_guard(folder: Path) -> None:
    """Compile and load it; a process needs it once."""
    if hasattr(build_guard, "loaded"):
        return
    torch_folder = Path(torch.__file__).parent
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(_GUARD, encoding="utf-8")
    subprocess.run(
        [
            *(*Compiler.find().command, "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}"),
            *(str(source), f"-L{torch_folder / 'lib'}", "-lc10", "-o", str(library)),
        ],
        check=True,
    )
    build_guard.loaded = ctypes.CDLL(str(library))  # type: ignore[attr-defined]


@contextmanager
def emulated_cuda(folder: Path, total_memory: int = 2**30) -> Iterator[EmulatedCuda]:
    """torch has this device as its only one in the block."""
    import triton
    from triton.runtime.interpreter import GridExecutor

    from orcastream.engine.attention import triton_backend
    from orcastream.engine.attention.triton import tiles

    build_guard(folder)
    emulated = EmulatedCuda(total_memory)
    cuda = torch.cuda
    properties = SimpleNamespace(
        name="emulated", total_memory=total_memory, multi_processor_count=_PROCESSORS, major=9, minor=0
    )
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 227 * 1024})
    library = _registered()
    with pytest.MonkeyPatch.context() as patch:
        _EMULATED.append(emulated)
        for name, value in {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_properties": lambda device=None: properties,
            "set_device": lambda device: None,
            "get_device_name": lambda device=None: properties.name,
            "mem_get_info": emulated.memory_info,
            "memory_allocated": lambda device=None: emulated.allocated,
            "memory_reserved": lambda device=None: emulated.allocated,
            "max_memory_allocated": lambda device=None: emulated.peak,
            "reset_peak_memory_stats": emulated.reset_peak,
            "empty_cache": lambda: None,
            "synchronize": emulated.synchronize,
            "current_stream": emulated.current_stream,
            "default_stream": lambda device=None: emulated.default_stream,
            "set_stream": emulated.set_stream,
            "Stream": Stream,
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph_pool_handle": lambda: (0, 1),
            "is_current_stream_capturing": lambda: emulated.capturing is not None,
        }.items():
            patch.setattr(cuda, name, value)
        torch.utils._device._device_constructors()  # remembers `torch.empty` as it is
        empty = torch.empty

        def empty_or_pinned(*size: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
            if not pin_memory:
                return empty(*size, **kwargs)
            shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
            return emulated.allocate_pinned(shape, kwargs.get("dtype") or torch.get_default_dtype())

        patch.setattr(torch, "empty", empty_or_pinned)
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor, device=None: emulated.is_pinned(tensor))
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        patch.setattr(torch.cuda.graph, "default_capture_stream", None)
        patch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
        patch.setattr(torch.cuda, "_get_device_index", lambda *args, **kwargs: 0)
        patch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
        patch.setattr(GridExecutor, "__call__", _kernel_launcher(GridExecutor.__call__))
        triton_backend._why_not_started.cache_clear()
        tiles._shared_memory.cache_clear()
        try:
            yield emulated
            emulated.capturing = None
            emulated.synchronize()
        finally:
            triton_backend._why_not_started.cache_clear()
            tiles._shared_memory.cache_clear()
            _EMULATED.pop()
            library._destroy()


def _kernel_launcher(run: Callable[..., object]) -> Callable[..., None]:
    def launcher(executor: Any, *args: Any, **kwargs: Any) -> None:
        _launch_kernel(run, executor, *args, **kwargs)

    return launcher
