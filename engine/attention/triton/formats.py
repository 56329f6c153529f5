"""Number formats of tensors, and their names in Triton."""

import torch
import triton
import triton.language as tl

FORMATS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.float8e4nv,
}

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether the kernels run in Triton's interpreter, decided on import."""


def factors_of(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of matrix products for queries of `dtype`: the same, but float32 for interpreted bfloat16.

    The interpreter stores a bfloat16 as its bits, and would multiply those.
    """
    return tl.float32 if INTERPRETED and dtype is torch.bfloat16 else FORMATS[dtype]
