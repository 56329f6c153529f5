"""Number formats of tensors and what Triton calls them."""

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
"""Whether the kernels run in Triton's interpreter, which was decided when they were imported."""


def factors_of(dtype: torch.dtype) -> tl.dtype:
    """What matrix products multiply where queries are `dtype`: that, but float32 where bfloat16 is interpreted.

    The interpreter keeps a bfloat16 as its bits, and would multiply those.
    """
    return tl.float32 if INTERPRETED and dtype is torch.bfloat16 else FORMATS[dtype]
