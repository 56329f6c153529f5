"""Operations of torch on the device: some are launched, some make the host wait, and some are refused."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.engine.emulated_cuda.copies import copy, to_copy
from tests.engine.emulated_cuda.registry import DEVICE, current
from tests.engine.emulated_cuda.results import compute, fill, room_for
from tests.engine.emulated_cuda.tensors import CudaTensor, memory_of

_VIEWS = {"alias", "detach", "lift_fresh", "_unsafe_view", "_reshape_alias"}
"""Views, in addition to the operations that their schema marks as such."""

_WITH_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
"""Operations that also take indices on the host."""

_READ_BY_HOST = {
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    *("bincount", "repeat_interleave", "is_nonzero", "item", "allclose"),
}
"""Operations that return a number, or a result with a shape that depends on numbers."""

_INDIVISIBLE = {"scaled_dot_product_attention", "linear", "_grouped_mm"}
"""Operations that torch decomposes in a different way on each device; here each of them is one kernel."""

_TAKE_SCALARS = {
    *("masked_fill", "masked_fill_", "fill_", "index_fill", "index_fill_", "where", "index_put", "index_put_"),
    "_index_put_impl_",
}
"""Operations that, like all pointwise ones, take a number on the host."""


def dispatch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Perform `func`, an operator of torch.ops with at least one CudaTensor among its arguments.

    Returns its result, which the device computes later unless the host must wait. Raises RuntimeError if the tensors
    are on two devices, torch.OutOfMemoryError, and torch.AcceleratorError if the host would wait during a capture.
    """
    name = func.overloadpacket.__name__
    if name == "_to_copy":
        return to_copy(*args, **kwargs)
    if name == "copy_":
        return copy(*args, **kwargs)
    if name == "is_pinned":
        return False
    if name not in _INDIVISIBLE and func._can_decompose():
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
    if name in _VIEWS or any(each.alias_info is not None for each in func._schema.returns):
        return _view(func, args, kwargs)
    if name in _READ_BY_HOST:
        return _read_by_host(func, args, kwargs)
    return compute(func, args, kwargs)


def _refuse_two_devices(func: Any, args: Any, kwargs: Any) -> None:
    others = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    others = [each for each in others if not isinstance(each, CudaTensor)]
    if not others:
        return
    takes_scalars = torch.Tag.pointwise in func.tags or func.overloadpacket.__name__ in _TAKE_SCALARS
    if not takes_scalars or any(each.ndim for each in others):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and "
            f"{others[0].device}! ({func})"
        )


def _view(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the views at once: they need no numbers. Each is an inference tensor exactly if its base is one."""
    with torch.inference_mode():
        found = func(*memory_of(args), **memory_of(kwargs))
    with torch.inference_mode(args[0].is_inference()):
        return tree_map_only(torch.Tensor, CudaTensor, found)


def _write(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[str]) -> Any:
    """Launch an operation that writes into its arguments named `written`, and return these arguments."""
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    targets = [given[name] for name in written]
    if any(not isinstance(each, CudaTensor) for each in tree_leaves(targets)):
        raise RuntimeError(f"{func}: the result is on the host, an argument on {DEVICE}")
    current().launch(partial(_write_late, func, memory_of(args), memory_of(kwargs), memory_of(targets)))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _write_late(func: Any, args: Any, kwargs: Any, targets: Sequence[Any]) -> None:
    before = [each.shape for each in tree_leaves(targets)]
    func(*args, **kwargs)
    assert before == [each.shape for each in tree_leaves(targets)], f"{func} changed the shape of its result"


def _read_by_host(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Wait for the current stream, then compute at once."""
    device = current()
    device.waits(str(func))
    device.current_stream().run()
    with torch.inference_mode():
        found = func(*memory_of(args), **memory_of(kwargs))
        if func.overloadpacket.__name__.endswith("_"):
            return args[0]
        results = tree_map_only(torch.Tensor, room_for, found)
        fill(results, found)
    return results
