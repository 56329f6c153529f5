"""The step between the two products of a gated MLP."""

import torch
import triton
import triton.language as tl

from orcastream.engine.attention.triton.formats import FORMATS
from orcastream.engine.model.triton.rounding import rounded

_VALUES = 1024
"""Of one program with four warps: one load of 16 bytes from each half per thread."""


def gated(gate_up: torch.Tensor, activation: int) -> torch.Tensor:
    """Return activation(gate) * up `[num_rows, size]` for contiguous `gate_up` `[num_rows, 2 * size]`.

    `activation` is 0 for SiLU, 1 for GELU by tanh.
    """
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(num_rows, size)
    block = min(_VALUES, triton.next_power_of_2(size))
    gated_kernel[(num_rows, triton.cdiv(size, block))](
        gate_up, output, SIZE=size, BLOCK=block, ACTIVATION=activation, FORMAT=FORMATS[gate_up.dtype], num_warps=4
    )
    return output


@triton.jit
def gated_kernel(
    gate_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr, FORMAT: tl.constexpr
):
    """Compute BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * (2 * SIZE) + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    # Both activations are gate * sigmoid(steep): 1 + tanh(u) is 2 * sigmoid(2 * u), and the factor 2 * sqrt(2 / pi).
    steep = gate if ACTIVATION == 0 else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = gate / (1.0 + tl.exp(tl.minimum(-steep, 88.0)))  # beyond it exp overflows
    tl.store(output + row * SIZE + columns, rounded(active * up, FORMAT), mask=inside)
