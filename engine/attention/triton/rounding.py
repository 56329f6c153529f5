"""Rounding to the formats of the cache, to nearest and ties to even, by arithmetic on the bits.

Hardware rounds this way, but Triton's interpreter truncates. With explicit rounding both store the same values as
`orcastream.engine.attention.quantize`.
"""

import triton
import triton.language as tl


@triton.jit
def to_format(values, FORMAT: tl.constexpr):
    """float32 `values` in FORMAT; beyond its range they saturate only for 8 bits, as the caller has clamped them."""
    if tl.bfloat16 == FORMAT:
        values = _keep_bits(values, 16)
    elif tl.float8e4nv == FORMAT:
        # Below 2^-6 all steps have the size 2^-9: that of a float32 between 2^14 and 2^15.
        small = (values + 24576.0) - 24576.0
        values = tl.where(tl.abs(values) < 0.015625, small, _keep_bits(values, 20))
    elif tl.int8 == FORMAT:
        values = (values + 12582912.0) - 12582912.0  # 1.5 * 2^23: from there on a float32 has no fraction
    return values.to(FORMAT)


@triton.jit
def _keep_bits(values, DROPPED: tl.constexpr):
    """float32 `values` whose last DROPPED bits are zero."""
    bits = values.to(tl.int32, bitcast=True)
    rounded = bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)
    kept = ((rounded >> DROPPED) << DROPPED).to(tl.float32, bitcast=True)
    return tl.where(values == values, kept, values)  # the bits of a NaN may carry over into its sign
