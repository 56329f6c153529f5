"""Results of operations: shape and memory exist at once, the numbers only after the device has computed them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from tests.engine.emulated_cuda.registry import current
from tests.engine.emulated_cuda.tensors import CudaTensor, memory_of

aten = torch.ops.aten

_UNINITIALIZED = {"empty_like", "new_empty", "new_empty_strided"}
"""Operations that only allocate."""


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Launch `func` and return its results, in new memory that the launched work fills.

    Raises torch.OutOfMemoryError, and the errors of `func` that follow from shapes and types.
    """
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    results = tree_map_only(torch.Tensor, room_for, _shapes(func, args, kwargs))
    if func.overloadpacket.__name__ not in _UNINITIALIZED:
        current().launch(partial(_compute_late, results, func, memory_of(args), memory_of(kwargs)))
    return results


def room_for(like: torch.Tensor) -> CudaTensor:
    """Return a tensor with the shape, strides and type of `like`, in new memory. Raises torch.OutOfMemoryError."""
    return current().allocate(like.shape, like.stride(), like.dtype)


def fill(results: Any, found: Any) -> None:
    """Copy the host tensors in `found` into the memory of `results`, a structure of the same shapes, at once."""
    for result, each in zip(tree_leaves(results), tree_leaves(found), strict=True):
        if isinstance(result, CudaTensor):
            assert result.shape == each.shape, (result.shape, each.shape)
            result.memory.copy_(each)


def _compute_late(results: Any, func: Any, args: Any, kwargs: Any) -> None:
    if func is aten.histc.default:  # on a CPU, histc does not accept integers
        args = (args[0].float(), *args[1:])
    fill(results, func(*args, **kwargs))


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the results of `func` as tensors without usable numbers."""
    if func is aten.scaled_dot_product_attention.default:
        query, _, value = args[:3]
        return torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device="meta")
    if func is aten._grouped_mm.default:
        left, right = args[:2]
        if left.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise RuntimeError(f"Expected mat_a to be Float32, BFloat16 or Float16 matrix, got {left.dtype}")
        if left.dtype is not torch.bfloat16:
            current().waits("_grouped_mm: one kernel only for bfloat16")
        return torch.empty(left.shape[0], right.shape[-1], dtype=left.dtype, device="meta")
    with torch.inference_mode():
        like = partial(tree_map, partial(_like, device="meta"))
        try:
            return func(*like(args), **like(kwargs), **({} if _has_tensor(args) else {"device": torch.device("meta")}))
        except NotImplementedError:  # for an operation without shapes on the meta device, compute with zeros
            like = partial(tree_map, partial(_like, device="cpu"))
            return func(*like(args), **like(kwargs))


def _like(value: Any, device: str) -> Any:
    if not isinstance(value, CudaTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return made if device == "meta" else made.zero_()


def _has_tensor(args: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in tree_leaves(args))
